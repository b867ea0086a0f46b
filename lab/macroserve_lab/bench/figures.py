"""Results of a benchmark as JSON, with date, machine and commit."""

import json
import os
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any


def report(figures: Mapping[str, float], path: Path | None, at: str | None = None) -> None:
    """Print the figures, rounded to four decimals, and write them to ``path``, if given.

    at: commit of the measurement; by default the checkout's.
    """
    lines = origin(at) | {name: round(figure, 4) for name, figure in figures.items()}
    text = json.dumps(lines, indent=2)
    print(text)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def origin(at: str | None = None) -> dict[str, Any]:
    """Return the date, the machine, and the commit, by default the checkout's."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "commit": at or commit(),
    }


def machine() -> str:
    """Return the number of cores and the processor's name."""
    return f"{os.cpu_count()} cores, {_processor()}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine


def commit() -> str:
    """Return the commit of this process's checkout, or else the version."""
    command = ("git", "describe", "--always", "--dirty")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f"version {metadata.version('macroserve')}"
