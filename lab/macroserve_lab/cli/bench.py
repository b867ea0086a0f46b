"""Benchmarks below `macroserve bench`: each prints its results as JSON; `--json` writes them."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from macroserve.cli.bench import bench
from macroserve.cli.choices import Choices
from macroserve.cli.file_options import JsonFile
from macroserve.engine.vllm.environment import prepare_environment
from macroserve_lab.bench.figures import commit, report
from macroserve_lab.bench.quickstart import quickstart_settings
from macroserve_lab.cli.bench_peers import peers

bench.command("peers")(peers)

Figures = dict[str, float]

HOSTILE_ENGINES = ("emulated", "vllm")
"""The keys of ``macroserve_lab.bench.hostile.served.ENGINES``, which takes long to import."""

_ENGINES = Choices(HOSTILE_ENGINES)


@bench.callback()
def prepare() -> None:
    """Load an OpenAI endpoint, or measure Macroserve itself and print the results as JSON."""
    prepare_environment()  # engines in these processes are as those of a deployment


def _scheduler() -> Figures:
    from macroserve_lab.bench.scheduler import measure, measure_steady

    return measure() | measure_steady()


def _route() -> Figures:
    from macroserve_lab.bench.route import measure

    return measure()


def _sim() -> Figures:
    from macroserve_lab.bench.sim import measure

    return measure()


def _overhead() -> Figures:
    from macroserve_lab.bench.overhead import measure

    return asyncio.run(measure(quickstart_settings()))


def _migration() -> Figures:
    from macroserve_lab.bench.migration import measure

    return asyncio.run(measure(quickstart_settings()))


def _hybrid() -> Figures:
    from macroserve_lab.bench.engine_pairs import measure_hybrid

    return asyncio.run(measure_hybrid(quickstart_settings("opt")))


ALL: dict[str, Callable[[], Figures]] = {
    "scheduler": _scheduler,
    "route": _route,
    "overhead": _overhead,
    "migration": _migration,
    "hybrid": _hybrid,
}


@bench.command()
def scheduler(json_file: JsonFile = None) -> None:
    """Time a scheduling decision with 100 to 2,000 waiting requests, and steps that need none."""
    report(_scheduler(), json_file)


@bench.command()
def route(json_file: JsonFile = None) -> None:
    """Time one routing decision over 16 to 256 instances."""
    report(_route(), json_file)


@bench.command()
def sim(json_file: JsonFile = None) -> None:
    """Measure the simulator's speed and memory with up to a million requests."""
    report(_sim(), json_file)


@bench.command()
def overhead(json_file: JsonFile = None) -> None:
    """Measure the overhead of the ingress in TTFT and tokens per second against bare vLLM."""
    report(_overhead(), json_file)


@bench.command()
def migration(json_file: JsonFile = None) -> None:
    """Time the migration of an instance's handle between cells while 20 streams run."""
    report(_migration(), json_file)


@bench.command()
def hybrid(json_file: JsonFile = None) -> None:
    """Compare the concurrent requests of a hybrid cache with keys and values only."""
    report(_hybrid(), json_file)


@bench.command()
def engine(json_file: JsonFile = None) -> None:
    """Compare the engine with stock vLLM (ten minutes): CPU time of a step's scheduling and of a
    streamed token, steps of a pipeline and of speculation, prefix caches, adapters, and tokens of
    all strategies and of models of several kinds."""
    from macroserve_lab.bench import engine_pairs, engine_steps, engine_tokens
    from macroserve_lab.bench.token_cpu import TokenCpuOptions
    from macroserve_lab.bench.token_cpu import measure as measure_tokens

    settings, token_cpu = quickstart_settings(), TokenCpuOptions(num_rounds=3)
    parts: dict[str, Callable[[], Figures]] = {
        "steps": lambda: engine_steps.measure(settings),
        "speculation": lambda: engine_steps.measure_speculation(settings),
        "pipeline": lambda: engine_steps.measure_pipeline(settings),
        "prefixes": lambda: asyncio.run(engine_pairs.measure_prefixes(settings)),
        "adapters": lambda: asyncio.run(engine_pairs.measure_adapters(settings)),
        "kinds": lambda: asyncio.run(engine_tokens.measure_kinds(settings)),
        "strategies": lambda: engine_tokens.measure_strategies(settings),
        "tokens": lambda: asyncio.run(measure_tokens(settings, token_cpu, commit())),
    }
    report(_measured(parts), json_file)


@bench.command()
def tokens(
    rounds: Annotated[
        int, typer.Option(metavar="N", help="Number of rounds of each side.", min=1)
    ] = 7,
    streams: Annotated[
        int, typer.Option(metavar="N", help="Number of concurrent streams.", min=1)
    ] = 16,
    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File of finished rounds, from which a stopped run continues."
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Compare the CPU time of a streamed token outside the engine with bare vLLM's API server."""
    from macroserve_lab.bench.token_cpu import TokenCpuOptions, measure

    options = TokenCpuOptions(rounds, streams, journal)
    report(asyncio.run(measure(quickstart_settings(), options, commit())), json_file)


@bench.command()
def strategies(json_file: JsonFile = None) -> None:
    """Measure the attainment of each strategy in a real engine, and the simulator's prediction."""
    from macroserve_lab.bench.strategies import measure

    report(asyncio.run(measure(quickstart_settings())), json_file)


@bench.command()
def hostile(
    engines: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            metavar="ENGINE",
            help=f"Engine to measure: {_ENGINES}; may be repeated (default: all).",
            autocompletion=_ENGINES.complete,
            callback=_ENGINES.check,
        ),
    ] = None,
    bodies: Annotated[
        int,
        typer.Option(
            metavar="N", help="Number of fuzzed requests to send to the vLLM engine.", min=1
        ),
    ] = 20_000,
    json_file: JsonFile = None,
) -> None:
    """Measure how hostile requests affect others: lost engines, pauses, memory and errors."""
    from macroserve_lab.bench.hostile.measure import measure

    report(
        asyncio.run(measure(quickstart_settings(), engines or list(HOSTILE_ENGINES), bodies)),
        json_file,
    )


@bench.command("all")
def all_(json_file: JsonFile = None) -> None:
    """Run scheduler, route, overhead, migration and hybrid, one after the other."""
    report(_measured(ALL), json_file)


def _measured(parts: Mapping[str, Callable[[], Figures]]) -> Figures:
    """Measure one part after the other, and tell on stderr which one."""
    figures: Figures = {}
    for name, measure in parts.items():
        typer.echo(f"{name}...", err=True)
        figures |= measure()
    return figures
