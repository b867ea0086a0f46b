"""Markdown tables, and the texts in them."""

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(map(_cell, line)) + " |\n" for line in lines)


def code(text: object) -> str:
    """Return the text as code, or nothing for nothing."""
    return f"`{text}`" if str(text) else ""


def prose(text: str) -> str:
    """Return a text of the sources as one line of Markdown, with nothing in it taken for HTML."""
    return re.sub(r"([<>*_])", r"\\\1", " ".join(text.split()).replace("``", "`"))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
