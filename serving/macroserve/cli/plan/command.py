"""The command ``macroserve plan``: its options and exit codes."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from macroserve.api.manifest import ManifestError
from macroserve.cli.deployment_options import DeploymentOptions
from macroserve.cli.failure import fail
from macroserve.cli.load_options import LoadOptions
from macroserve.cli.option_groups import takes_groups
from macroserve.local.manifest_file import load as load_manifest
from macroserve.local.manifest_file import load_document

DEFAULT_DURATION = "5m"


@takes_groups
def plan(
    deployment: DeploymentOptions,
    load: LoadOptions,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Folder for plan.json, plan.png and macroinstance.yaml."
        ),
    ],
    devices: Annotated[int, typer.Option(help="Maximum number of devices.", min=1)] = 32,
    per_node: Annotated[
        int, typer.Option(help="Devices per node; an instance stays within one node.", min=1)
    ] = 8,
    price: Annotated[
        float | None, typer.Option(help="Price per device-hour, in any currency.", min=0)
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Duration of the arrivals (default: the whole trace; "
            f"{DEFAULT_DURATION} with --rate).",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="Worker processes (default: one per core).", min=1)
    ] = None,
) -> None:
    """Find the cheapest configuration that meets a manifest's targets under a load.

    The search varies the devices of an instance, the number of instances, the size of cells, the
    share of high-priority (HP) instances and the strategy; all else is as the manifest says. It
    simulates, so neither the devices nor the model's weights have to exist.
    """
    # Imported late, so that other commands, including those of pods, start faster.
    from macroserve.cli.plan import report
    from macroserve.cli.simulated_deployment import SimulatedDeployment
    from macroserve.cli.simulated_load import requests
    from macroserve.sim.capacity.planning import Candidate, Need, search
    from macroserve.workload.class_mix import ClassMix

    console, tried = Console(highlight=False), list[Candidate]()
    try:
        wanted = load_manifest(deployment.manifest)
        simulated = SimulatedDeployment.of(wanted, deployment)
        scenario, strategies = simulated.to_plan()
        asked = requests(load, duration, DEFAULT_DURATION, warm_up_s=0.0)
        asked = asked.mixed(ClassMix(wanted.slo_classes), load.seed)
        beyond = asked.beyond(wanted.spec.model.max_model_len)
        asked = asked.that_fit(wanted.spec.model.max_model_len)
        need = Need(asked.arrivals, wanted.spec.slo.attainment, devices, per_node)
        out.mkdir(parents=True, exist_ok=True)
        with console.status("Simulating candidates..."):
            num_processes = processes or os.cpu_count() or 1
            chosen = search(scenario, need, num_processes, tried.append, strategies)
    except (ManifestError, ValueError) as error:
        fail("plan", error, 2)
    except OSError as error:
        fail("plan", f"--out: {error}", 2)
    if asked.num_skipped:
        typer.echo(f"{asked.num_skipped:,} invalid rows of the trace skipped", err=True)
    for sentence in (*simulated.not_simulated(), *beyond.sentences()):
        typer.echo(f"{sentence}.", err=True)
    if beyond.num_refused:
        typer.echo("The plan covers the other requests.", err=True)
    cost = report.Cost(asked.num_requests / max(asked.duration_s, 1.0), price)
    console.print(report.table(tried, chosen, cost, need.goal))
    figures = {
        "recommended": report.document(chosen, cost),
        "candidates": [report.document(candidate, cost) for candidate in tried],
    }
    (out / "plan.json").write_text(json.dumps(figures, indent=2) + "\n")
    document = report.recommended(load_document(deployment.manifest), chosen)
    (out / "macroinstance.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    written = ["plan.json", "macroinstance.yaml"]
    if find_spec("matplotlib"):
        report.plot(out / "plan.png", tried, chosen, need.goal)
        written.append("plan.png")
    console.print(f"In {out}: {', '.join(written)}.")
