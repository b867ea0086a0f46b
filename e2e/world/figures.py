"""What a benchmark has measured, for a person and for a file."""

import json
from collections.abc import Mapping
from pathlib import Path


def report(figures: Mapping[str, float], path: Path | None) -> None:
    """Print the figures as JSON, and write them to the file, if there is to be one."""
    text = json.dumps({name: round(figure, 3) for name, figure in figures.items()}, indent=2)
    print(text)
    if path:
        path.write_text(text + "\n")
