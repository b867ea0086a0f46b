"""``macroserve bench``: each benchmark prints its figures as JSON, and writes them with --json."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from macroserve.bench.figures import report
from macroserve.cli.bench_serve import serve
from macroserve.core.request import Slo
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

bench = typer.Typer(no_args_is_help=True)
bench.command("serve")(serve)

JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the figures there.")]
Figures = dict[str, float]


@bench.callback()
def prepare() -> None:
    """Measure: figures as JSON."""
    prepare_environment()  # engines in these processes are as those of a deployment


def _settings(architecture: str = "llama") -> EngineSettings:
    """The quickstart's engine: one real vLLM on the CPU with the built-in model."""
    from macroserve.local.tiny_model import ensure_tiny_model

    return EngineSettings(
        model=str(ensure_tiny_model(architecture=architecture)),
        served_name=f"tiny-{architecture}",
        max_model_len=2048,
        strategy="unified",
        slo=Slo(ttft_s=2.0, tpot_s=0.1),
        dtype="float32",
    )


def _scheduler() -> Figures:
    from macroserve.bench.scheduler import measure

    return measure()


def _route() -> Figures:
    from macroserve.bench.route import measure

    return measure()


def _sim() -> Figures:
    from macroserve.bench.sim import measure

    return measure()


def _overhead() -> Figures:
    from macroserve.bench.overhead import measure

    return asyncio.run(measure(_settings()))


def _migration() -> Figures:
    from macroserve.bench.migration import measure

    return asyncio.run(measure(_settings()))


def _hybrid() -> Figures:
    from macroserve.bench.hybrid import measure

    return asyncio.run(measure(_settings("opt")))


ALL: dict[str, Callable[[], Figures]] = {
    "scheduler": _scheduler,
    "route": _route,
    "overhead": _overhead,
    "migration": _migration,
    "hybrid": _hybrid,
}


@bench.command()
def scheduler(json_file: JsonFile = None) -> None:
    """One iteration's decision with 100 to 2,000 requests waiting."""
    report(_scheduler(), json_file)


@bench.command()
def route(json_file: JsonFile = None) -> None:
    """One routing decision over 16 to 256 instances."""
    report(_route(), json_file)


@bench.command()
def sim(json_file: JsonFile = None) -> None:
    """The simulator's speed and memory with up to a million requests; Apt-Serve's decisions."""
    report(_sim(), json_file)


@bench.command()
def overhead(json_file: JsonFile = None) -> None:
    """What the ingress adds: time to first token, and tokens per second against bare vLLM."""
    report(_overhead(), json_file)


@bench.command()
def migration(json_file: JsonFile = None) -> None:
    """A handle moved between cells while 20 streams run."""
    report(_migration(), json_file)


@bench.command()
def hybrid(json_file: JsonFile = None) -> None:
    """Requests at a time in one pool with hidden states, over those with keys and values alone."""
    report(_hybrid(), json_file)


@bench.command()
def strategies(json_file: JsonFile = None) -> None:
    """Attainment of each strategy in a real engine, beside the simulator's prediction."""
    from macroserve.bench.strategies import measure

    report(asyncio.run(measure(_settings())), json_file)


@bench.command()
def hostile(
    engines: Annotated[
        list[str] | None,
        typer.Option("--engine", help="emulated or vllm; both by default."),
    ] = None,
    bodies: Annotated[int, typer.Option(help="Fuzzed bodies, on the real engine.", min=1)] = 20_000,
    json_file: JsonFile = None,
) -> None:
    """What hostile or unlucky requests do to others: engines lost, pauses, memory, errors."""
    from macroserve.bench.hostile.measure import measure
    from macroserve.bench.hostile.served import ENGINES

    chosen = engines or list(ENGINES)
    if unknown := set(chosen) - set(ENGINES):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: must be one of {', '.join(ENGINES)}"
        )
    report(asyncio.run(measure(_settings(), chosen, bodies)), json_file)


@bench.command("all")
def all_(json_file: JsonFile = None) -> None:
    """Scheduler, route, overhead, migration and hybrid, one after the other."""
    figures: Figures = {}
    for name, measure in ALL.items():
        typer.echo(f"{name}...", err=True)
        figures |= measure()
    report(figures, json_file)
