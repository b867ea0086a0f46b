"""Markdown tables, and the texts in their cells."""

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(map(_cell, line)) + " |\n" for line in lines)


def code(text: object) -> str:
    """Return the text as code, or nothing for nothing."""
    return f"`{text}`" if str(text) else ""


def prose(text: str) -> str:
    """Return a text of the sources as one line of Markdown, with links to the pages that it names
    and nothing in it taken for HTML."""
    text = re.sub(r"([<>*_])", r"\\\1", " ".join(text.split()).replace("``", "`"))
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](../\1.md)", text)


def _cell(text: str) -> str:
    parts = text.replace("\n", " ").split("`")
    return "".join(
        _code_cell(part) if n % 2 else part.replace("|", "\\|") for n, part in enumerate(parts)
    )


def _code_cell(text: str) -> str:
    # A bar between backticks ends a cell on GitHub, and MkDocs would show an escape's backslash.
    if "|" not in text:
        return f"`{text}`"
    escaped = re.sub(r"[^\w\s.-]", lambda mark: f"&#{ord(mark[0])};", text)
    return f"<code>{escaped}</code>"
