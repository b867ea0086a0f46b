"""Write the page of the chart's values from values.yaml and its comments."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from tables import code, prose, table

VALUES = Path(__file__).parents[2] / "helm" / "macroserve" / "values.yaml"
HEAD = """# Values of the chart

Helm checks values against `values.schema.json` of the chart, and names the path of a wrong one.

"""
KEY = re.compile(r"( *)([\w]+):")


class Value(NamedTuple):
    """A key of the chart's values, with the comment above it."""

    path: tuple[str, ...]
    comment: str

    @property
    def name(self) -> str:
        return ".".join(self.path)


def page() -> str:
    document = yaml.safe_load(VALUES.read_text())
    values = list(_values(VALUES.read_text().splitlines()))
    sections: dict[str, list[tuple[str, str, str]]] = {}
    for value in values:
        found = _at(document, value.path)
        rows = sections.setdefault(value.path[0], [])
        if isinstance(found, dict) and any(_is_below(other, value) for other in values):
            if value.comment:
                rows.append((code(value.name), "", prose(value.comment)))
        elif found is not None:
            rows.append((code(value.name), code(_text(found)), prose(value.comment)))
    return HEAD + "\n".join(
        f"## {name}\n\n" + table(("value", "default", "meaning"), rows)
        for name, rows in sections.items()
    )


def _values(lines: list[str]) -> Iterator[Value]:
    """Yield each key that has a line to itself."""
    path: list[str] = []
    comment: list[str] = []
    for line in lines:
        text = line.strip()
        if text.startswith("#"):
            comment.append(text.lstrip("# "))
        elif not text:
            comment.clear()
        elif match := KEY.match(line):
            path[len(match[1]) // 2 :] = [match[2]]
            yield Value(tuple(path), " ".join(comment))
            comment.clear()


def _is_below(value: Value, other: Value) -> bool:
    return value.path[:-1] == other.path


def _at(document: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path; None for one that leads into a list."""
    for key in path:
        if not isinstance(document, dict):
            return None
        document = document[key]
    return document


def _text(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return text.removesuffix("...\n").strip()
