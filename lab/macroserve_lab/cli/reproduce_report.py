"""The report of a reproduction: a JSON file of all figures, tables of printed ones, and plots."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from macroserve_lab.bench.figures import origin
from macroserve_lab.papers.claims.figures import CLAIMS
from macroserve_lab.papers.figure import Figure, Panel, Row
from macroserve_lab.papers.measurements import Values

Results = Mapping[str, tuple[Figure, Sequence[Row]]]
"""Figures and their rows, by name."""


def tables(paper: str, results: Results) -> RenderableType:
    """Return a table for each figure, with an explanation where it differs from the paper."""
    parts: list[RenderableType] = []
    for name, (figure, rows) in results.items():
        printed = [row for row in rows if row.paper is not None or row.is_summary]
        if not printed:
            parts.append(f"{paper}: {name} has curves alone, see the files.\n")
            continue
        parts.append(_table(f"{paper}: {name}", printed))
        if heading := figure.note and _what_differs(printed):
            parts.append(Padding(f"{heading}: {figure.note}", (0, 2, 1, 2)))
    return Group(*parts)


def _what_differs(rows: Sequence[Row]) -> str | None:
    if any(row.is_off for row in rows):
        return "Off by more than 30 %"
    if all(row.paper is None for row in rows):
        return "Beside the paper's curves"
    return None


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
        {"figure": name}
        | {key: value for key, value in asdict(row).items() if key != "is_summary"}
        | {"ratio": row.ratio, "explanation": figure.note if row.is_off else None}
        for name, (figure, rows) in results.items()
        for row in rows
    ]
    path.write_text(json.dumps(documents, indent=2) + "\n")


def write_claims(path: Path, results: Results, values: Values) -> None:
    """Write the claims of the papers' abstracts, as docs/results/data/papers.json has them."""
    found = [
        claim.document(values) | {"setup": figure.note}
        for name, (figure, _) in results.items()
        for claim in CLAIMS[name]
    ]
    path.write_text(json.dumps(origin() | {"claims": found}, indent=2) + "\n")


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Draw the panels side by side, with one legend. Needs matplotlib."""
    from matplotlib.figure import Figure as Picture
    from matplotlib.ticker import PercentFormatter

    picture = Picture(figsize=(5.5 * len(panels), 4.5), layout="constrained")
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    drawn = {}
    for axes, panel in zip(picture.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name, line in panel.lines.items():
            style = {"color": f"C{names.index(name)}", "marker": ".", "label": name}
            (drawn[name],) = axes.plot(*zip(*line, strict=True), **style)
        axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
        axes.grid(alpha=0.3)
        if panel.is_share:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            axes.set_ylim(0.0, 1.02)
    ncols = 2 if len(panels) == 1 else 4
    handles = [drawn[name] for name in names]
    picture.legend(handles=handles, loc="outside lower center", ncols=ncols)
    picture.savefig(path, format="png", dpi=150)
