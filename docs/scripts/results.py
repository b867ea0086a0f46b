"""Fill in the figures of the results' pages from the JSON files that benchmarks wrote.

A page has ``{{ FILE:FIGURE:FORMAT }}`` where a figure goes, for example
``{{ bench:overhead.throughput_ratio:.2f }}``, and ``{{ FILE:from }}`` where date, machine and
commit go. FILE is the name of a file in docs/results/data without its suffix, FORMAT a format
specification of Python.
"""

import json
import re
from pathlib import Path

DATA = Path(__file__).parents[1] / "results" / "data"
PLACE = re.compile(r"\{\{ ([\w-]+):([\w.-]+)(?::([^ }]+))? \}\}")


def fill(markdown: str, folder: Path = DATA) -> str:
    """Return the page with its figures. Raises OSError for a file and KeyError for a figure that
    is missing."""

    def text(place: re.Match[str]) -> str:
        figures = json.loads((folder / f"{place[1]}.json").read_text())
        if place[2] == "from":
            return "{date}, {machine}, commit {commit}".format_map(figures)
        return format(figures[place[2]], place[3] or "")

    return PLACE.sub(text, markdown)
