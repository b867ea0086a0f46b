"""The output of ``macroserve up`` tells which instances serve."""

from pathlib import Path


def num_serving(log: Path) -> int:
    """Return the number of instances that have started and are not lost."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return text.count(" serves in ") - text.count(" ended: ")
