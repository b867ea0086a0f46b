"""Depth, length and counts of decoded JSON, measured without recursion."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class JsonSize:
    """Totals over a JSON value."""

    depth: int = 0
    chars: int = 0
    """Characters of all strings, including keys."""
    largest_integer: int = 0


def types_of(entries: Collection[Any]) -> set[type]:
    """Return the types of the entries, without a Python loop over up to 100,000 token IDs."""
    return {*map(type, entries)}


def measured(value: Any) -> JsonSize:
    size = JsonSize()
    level: list[Collection[Any]] = [(value,)]
    while level:
        below: list[Collection[Any]] = []
        for entries in level:
            types = types_of(entries)
            if not types.isdisjoint((str, list, dict)):
                for entry in entries:
                    if isinstance(entry, str):
                        size.chars += len(entry)
                    elif isinstance(entry, dict):
                        size.chars += sum(map(len, entry))
                        below.append(entry.values())
                    elif isinstance(entry, list):
                        below.append(entry)
            if int in types:
                integers = entries if len(types) == 1 else [e for e in entries if type(e) is int]
                size.largest_integer = max(size.largest_integer, max(integers), -min(integers))
        size.depth += bool(below)
        level = below
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
    """Return the number as vLLM reads it (``"12"`` is 12), or 0 for other values."""
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
