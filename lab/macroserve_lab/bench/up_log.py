"""The serving instances in the output of ``macroserve up``."""

from pathlib import Path


def num_serving(log: Path) -> int:
    """Return the number of instances that have started and were not lost."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return text.count(" serves in ") - text.count(" ended: ")
