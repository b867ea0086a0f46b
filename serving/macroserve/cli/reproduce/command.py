"""The command: its options and its progress."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

console = Console(highlight=False)

PAPER_NAMES = ("aptserve", "ascendra", "econoserve", "ecoserve", "unified")
"""The keys of ``macroserve.papers.PAPERS``, which takes long to import."""


def _papers(incomplete: str) -> list[str]:
    return [name for name in PAPER_NAMES if name.startswith(incomplete)]


def reproduce(
    paper: Annotated[
        str, typer.Argument(help=f"The paper: {', '.join(PAPER_NAMES)}.", autocompletion=_papers)
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    figure: Annotated[
        list[str] | None,
        typer.Option(help="Figure to measure, may be repeated (default: all of the paper)."),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(help="Random seed, may be repeated for the mean over seeds (default: 0)."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="Worker processes (default: one per core).", min=1)
    ] = None,
) -> None:
    """Measure a paper's figures again in the simulator. What was measured before is kept."""
    # Late: whatever starts with ``macroserve``, pods too, would wait for these.
    from macroserve.cli.reproduce.report import draw, tables, write
    from macroserve.papers import PAPERS
    from macroserve.papers.result_cache import ResultCache, measure_all

    figures = PAPERS.get(paper)
    if figures is None:
        raise typer.BadParameter(f"{paper!r} is none of {', '.join(PAPERS)}.")
    for name in figure or ():
        if name not in figures:
            raise typer.BadParameter(f"{paper} has the figures {', '.join(figures)}, not {name!r}.")
    chosen = {name: figures[name] for name in figure or figures}
    measurements = [each for found in chosen.values() for each in found.measurements()]
    seeds = list(dict.fromkeys(seed or [0]))
    cache = ResultCache(out / f"{paper}-measured.jsonl")
    with _progress() as progress:
        task = progress.add_task(paper, total=len(seeds) * len(measurements))
        values = measure_all(
            measurements,
            cache,
            seeds,
            processes or os.cpu_count() or 1,
            lambda number: progress.advance(task, number),
        )
    results = {name: (found, found.rows(values)) for name, found in chosen.items()}
    write(out / f"{paper}.json", results)
    console.print(tables(paper, results))
    if find_spec("matplotlib"):
        for name, found in chosen.items():
            if panels := found.panels(values):
                draw(out / f"{paper}-{name}.png", panels)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )
