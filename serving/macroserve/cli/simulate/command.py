"""The command ``macroserve simulate``: its options and exit codes."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from macroserve.api.manifest import ManifestError
from macroserve.bench.durations import seconds
from macroserve.cli.deployment_options import DeploymentOptions
from macroserve.cli.failure import fail
from macroserve.cli.file_options import JsonFile
from macroserve.cli.load_options import LoadOptions
from macroserve.cli.option_groups import takes_groups
from macroserve.cli.simulate.autoscale_options import AutoscaleOptions
from macroserve.local.manifest_file import load as load_manifest

DEFAULT_DURATION = "10m"
WARM_UP_S = 30.0
"""Duration of the uncounted synthetic requests at the start, seconds."""


@takes_groups
def simulate(
    deployment: DeploymentOptions,
    load: LoadOptions,
    autoscaling: AutoscaleOptions,
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Duration of the arrivals (default: the whole trace; with --rate "
            f"{DEFAULT_DURATION}, after a warm-up of {WARM_UP_S:.0f} s that does not count).",
        ),
    ] = None,
    json_file: JsonFile = None,
    trace_out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a trace of batches and requests that https://ui.perfetto.dev opens.",
        ),
    ] = None,
) -> None:
    """Simulate a manifest's deployment under a load, and report latencies and SLO attainment.

    The load is a trace or synthetic arrivals. The devices and the model's weights need not exist.
    The simulation ends with the last request.
    """
    # Imported late, so that other commands, including those of pods, start faster.
    from macroserve.cli.simulate.autoscale_report import AutoscaleReport
    from macroserve.cli.simulate.report import SimulationReport
    from macroserve.cli.simulated_deployment import SimulatedDeployment
    from macroserve.cli.simulated_load import requests
    from macroserve.sim.autoscaling.goals import Goals
    from macroserve.sim.autoscaling.run import AutoscaledScenario
    from macroserve.sim.results import AT_END
    from macroserve.sim.simulation_trace import SimulationTrace
    from macroserve.workload.class_mix import ClassMix

    try:
        start_up = autoscaling.start()
        wanted = load_manifest(deployment.manifest)
        limits = autoscaling.limits(wanted)
        simulated = SimulatedDeployment.of(wanted, deployment)
        scenario = simulated.scenario()
        asked = requests(load, duration, DEFAULT_DURATION, WARM_UP_S)
        asked = asked.mixed(ClassMix(wanted.slo_classes), load.seed)
        recorded = None if trace_out is None else SimulationTrace()
        timeline = None
        if limits is None:
            outcome = scenario.serve(
                asked.arrivals,
                num_before=asked.num_before,
                seed=load.seed,
                stop=AT_END,
                trace=recorded,
            )
        else:
            goals = Goals(wanted.spec.slo.attainment, wanted.slo_classes)
            autoscaled = AutoscaledScenario(scenario, limits, start_up, goals)
            outcome, timeline = autoscaled.serve(
                asked.arrivals, num_before=asked.num_before, seed=load.seed, trace=recorded
            )
    except (ManifestError, ValueError) as error:
        fail("simulate", error, 2)
    if asked.num_skipped:
        typer.echo(f"{asked.num_skipped:,} invalid rows of the trace skipped", err=True)
    beyond = asked.beyond(wanted.spec.model.max_model_len)
    for sentence in (*simulated.not_simulated(), *beyond.sentences()):
        typer.echo(f"{sentence}.", err=True)
    max_wait_s = wanted.spec.scheduling.max_queue_wait_s
    if outcome.longest_wait_s > max_wait_s:
        typer.echo(
            "spec.scheduling.maxQueueWait is not simulated: the endpoint refuses requests that "
            f"would wait longer than {seconds(max_wait_s)}; the longest wait was "
            f"{seconds(outcome.longest_wait_s)}.",
            err=True,
        )
    num_instances = timeline.most_existing if timeline else wanted.spec.instances
    report = SimulationReport.of(outcome, num_instances * scenario.cluster.num_devices)
    console, document = Console(highlight=False), dict(report.document())
    console.print(report.tables(wanted.slo))
    if timeline is not None:
        fleet = AutoscaleReport.of(timeline)
        console.print(fleet.tables())
        document["autoscaling"] = fleet.document()
    if json_file is not None:
        json_file.write_text(json.dumps(document, indent=2) + "\n")
    if trace_out is not None and recorded is not None:
        recorded.write(trace_out)
