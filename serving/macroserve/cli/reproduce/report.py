"""What a reproduction ends with: a file of all figures, and tables of those that a paper prints."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from macroserve.sim.papers.measure import Figure, Row

Results = Mapping[str, tuple[Figure, Sequence[Row]]]
"""By the figures' names."""


def tables(paper: str, results: Results) -> RenderableType:
    """One for each figure, with the explanation of what is off."""
    parts: list[RenderableType] = []
    for name, (figure, rows) in results.items():
        printed = [row for row in rows if row.paper is not None or row.is_summary]
        parts.append(_table(f"{paper}: {name}", printed))
        if figure.explanation and any(row.is_off for row in printed):
            parts.append(Padding(f"Off by more than 30 %: {figure.explanation}", (0, 2, 1, 2)))
    return Group(*parts)


def _table(title: str, rows: Sequence[Row]) -> Table:
    metrics = {row.metric for row in rows}
    caption = metrics.pop() if len(metrics) == 1 else None
    shown = Table("case", "strategy", title=title, caption=caption)
    if not caption:
        shown.add_column("metric")
    for column in ("paper", "ours", "ratio"):
        shown.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        metric = () if caption else (row.metric,)
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}{' *' if row.is_off else ''}"
        paper = "-" if row.paper is None else f"{row.paper:.4g}"
        numbers = (paper, f"{row.ours:.4g}", ratio)
        shown.add_row(row.case, row.strategy, *metric, *numbers)
    return shown


def write(path: Path, results: Results) -> None:
    documents = [
        {name: value for name, value in asdict(row).items() if name != "is_summary"}
        | {"ratio": row.ratio, "explanation": figure.explanation if row.is_off else None}
        for figure, rows in results.values()
        for row in rows
    ]
    path.write_text(json.dumps(documents, indent=2) + "\n")
