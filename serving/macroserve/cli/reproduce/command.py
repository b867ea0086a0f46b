"""The command: options, progress, and where the results go."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from macroserve.sim.papers import PAPERS
from macroserve.sim.papers.measure import Notebook, Row, carry_out

console = Console(highlight=False)


def reproduce(
    paper: Annotated[str, typer.Argument(help=f"One of {', '.join(PAPERS)}.")],
    out: Annotated[Path, typer.Option(help="A folder for the results.")],
    figure: Annotated[str | None, typer.Option(help="One figure of the paper; else all.")] = None,
    seed: Annotated[int, typer.Option(help="Of arrivals, lengths and noise.", min=0)] = 0,
    processes: Annotated[int | None, typer.Option(help="Else one a core.", min=1)] = None,
) -> None:
    """Measure a paper's figures again in the simulator. What was measured before is kept."""
    figures = PAPERS.get(paper)
    if figures is None:
        raise typer.BadParameter(f"{paper!r} is none of {', '.join(PAPERS)}.")
    if figure is not None and figure not in figures:
        raise typer.BadParameter(f"{paper} has the figures {', '.join(figures)}, not {figure!r}.")
    chosen = list(figures.values()) if figure is None else [figures[figure]]
    measurements = [each for found in chosen for each in found.measurements()]
    notebook = Notebook(out / f"{paper}-measured.jsonl", seed)
    with _progress() as progress:
        task = progress.add_task(paper, total=len(measurements))
        values = carry_out(
            measurements,
            notebook,
            seed,
            processes or os.cpu_count() or 1,
            lambda number: progress.advance(task, number),
        )
    rows = [row for found in chosen for row in found.rows(values)]
    _write(out / f"{paper}.json", rows)
    console.print(table(paper, rows))


def table(paper: str, rows: Sequence[Row]) -> Table:
    """Those that the paper prints, too."""
    shown = Table("figure", "case", "strategy", "metric", title=paper)
    for column in ("paper", "ours", "ratio"):
        shown.add_column(column, justify="right")
    for row in rows:
        if row.paper is not None and row.ratio is not None:
            numbers = (f"{row.paper:.4g}", f"{row.ours:.4g}", f"{row.ratio:.2f}")
            shown.add_row(row.figure, row.case, row.strategy, row.metric, *numbers)
    return shown


def _write(path: Path, rows: Sequence[Row]) -> None:
    documents = [asdict(row) | {"ratio": row.ratio} for row in rows]
    path.write_text(json.dumps(documents, indent=2) + "\n")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )
