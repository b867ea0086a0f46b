"""The size of decoded JSON is measured in depth, length and counts, without recursion."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class JsonSize:
    """The size sums over a JSON value."""

    depth: int = 0
    chars: int = 0
    """Characters of all strings, keys included."""
    largest_integer: int = 0


def measured(value: Any) -> JsonSize:
    size = JsonSize()
    level: list[Any] = [value]
    while level:
        below: list[Any] = []
        for entry in level:
            if isinstance(entry, str):
                size.chars += len(entry)
            elif isinstance(entry, dict):
                size.chars += sum(map(len, entry))
                below.append(entry.values())
            elif isinstance(entry, list):
                below.append(entry)
            elif isinstance(entry, int) and abs(entry) > size.largest_integer:
                size.largest_integer = abs(entry)
        size.depth += bool(below)
        level = [entry for entries in below for entry in entries]
    return size


def objects(value: Any) -> Iterator[dict[str, Any]]:
    stack = [value]
    while stack:
        entry = stack.pop()
        if isinstance(entry, dict):
            yield entry
            stack.extend(entry.values())
        elif isinstance(entry, list):
            stack.extend(entry)


def length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | dict) else 0


def number(value: Any) -> float:
    """Return the number as vLLM would read it: ``"12"`` and ``12.0`` are 12, too. Other values give
    0."""
    if not isinstance(value, int | float | str) or len(str(value)) > 30:
        return 0.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def long_lists(name: str, value: Any, most: int) -> Iterator[str]:
    if isinstance(value, list | dict) and len(value) > most:
        yield f"{name} has {len(value)} entries; at most {most}"


def long_strings(name: str, value: Any, most: int) -> Iterator[str]:
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and len(text) > most:
            yield f"{name} has a text of {len(text)} characters; at most {most}"
