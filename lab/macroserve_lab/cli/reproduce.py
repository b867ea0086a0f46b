"""The command of ``macroserve reproduce``: its options and its progress."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from macroserve.cli.choices import Choices
from macroserve.workload.trace import TimeUnit

console = Console(highlight=False)

CLAIMS = "claims"
FIGURE_NAMES = {
    "aptserve": (
        *("throughput", "attainment", "burstiness", "ablation", "latencies", "ultra-long"),
    ),
    "ascendra": (
        *("goodput", "variants", "attainment", "strictness", "overload", "ordering"),
        *("model-error", "breakdown", "tickets", "appendix"),
    ),
    "autoscaling": ("llm-d", "start-up", "bursts", "azure"),
    CLAIMS: ("ecoserve", "aptserve", "econoserve", "ascendra"),
    "econoserve": (
        *("rate", "latency", "utilisation", "devices", "ablation"),
        *("schedulers", "satisfaction", "overhead", "sensitivity"),
    ),
    "ecoserve": ("goodput", "attainment", "static-scaling", "dynamic-scaling", "pipelines"),
    "prefixes": ("llm-d", "kthena", "conversations", "mooncake"),
    "unified": ("goodput", "ceiling", "p99", "tbt", "ablation", "macro"),
}
"""Papers of `macroserve_lab.papers.PAPERS`, a slow import, and their figures, those of a recorded
load last."""

_PAPERS = Choices(FIGURE_NAMES)


def _figures(context: typer.Context, incomplete: str) -> list[str]:
    """Return the figures of the paper on the command line that begin with ``incomplete``."""
    # Before an option without its value, the parser has not yet named the arguments.
    given = [context.params.get("paper"), *context.args]
    names = next((FIGURE_NAMES[each] for each in given if each in FIGURE_NAMES), ())
    return Choices(names).complete(incomplete)


def reproduce(
    paper: Annotated[
        str,
        typer.Argument(
            metavar="PAPER",
            help=f"Paper to reproduce: {_PAPERS}. claims are those of the four papers' abstracts; "
            "unified is this project's own strategy; "
            "prefixes and autoscaling are published benchmarks of other projects and similar ones.",
            autocompletion=_PAPERS.complete,
            callback=_PAPERS.check,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder for tables (JSON) and plots (PNG). Measured points are kept.",
        ),
    ],
    figure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE",
            help="Figure to measure, may be repeated (default: all of the paper). "
            + "; ".join(f"{paper}: {', '.join(names)}" for paper, names in FIGURE_NAMES.items())
            + ".",
            autocompletion=_figures,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Mooncake's conversation_trace.jsonl, for the figure mooncake of prefixes, or "
            "AzureLLMInferenceTrace_conv.csv, for azure of autoscaling (default: skip the "
            "figure).",
        ),
    ] = None,
    trace_unit: Annotated[
        TimeUnit | None,
        typer.Option(help="Unit of timestamp in --trace: s or ms (default: ms, as in Mooncake's)."),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            help="Random seed, may be repeated for the mean over seeds (default: 0).",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Worker processes (default: one per core).", min=1),
    ] = None,
) -> None:
    """Reproduce a paper's figures in the simulator, and print the paper's values beside ours."""
    # Imported late, as all commands of ``macroserve`` would wait for these imports.
    from macroserve_lab.cli.reproduce_report import draw, tables, write, write_claims
    from macroserve_lab.papers import figures_of
    from macroserve_lab.papers.result_cache import ResultCache, distinct, measure_all

    try:
        if trace_unit is not None and trace is None:
            raise ValueError("--trace-unit goes with --trace")
        figures = figures_of(paper, trace, trace_unit)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.", param_hint="'--trace'") from None
    for name in figure or ():
        if name not in figures:
            reason = f"is not one of {', '.join(figures)}, the figures of {paper}"
            if name in FIGURE_NAMES[paper]:
                reason = "needs --trace FILE"
            raise typer.BadParameter(f"{name!r} {reason}.", param_hint="'--figure'")
    chosen = {name: figures[name] for name in figure or figures}
    measurements = distinct(each for found in chosen.values() for each in found.measurements)
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
    if paper == CLAIMS:
        write_claims(out / f"{paper}.json", results, values)
    else:
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
