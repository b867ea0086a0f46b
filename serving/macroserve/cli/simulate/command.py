"""The command: its options and its exit codes."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from macroserve.api.manifest import ManifestError
from macroserve.cli import load_options as options
from macroserve.cli.simulate import options as where
from macroserve.core.scaling.mitosis import Bounds
from macroserve.local.manifest_file import load as load_manifest

DEFAULT_DURATION = "10m"
WARM_UP_S = 30.0
"""Synthetic requests of so long come before those that count."""


def simulate(
    context: typer.Context,
    manifest: where.ManifestFile,
    device: where.Device,
    link: where.Link = where.DEFAULT_LINK,
    model: where.Model = None,
    trace: options.TraceFile = None,
    time_scale: options.TimeScale = None,
    trace_unit: options.TraceUnit = None,
    lenient: options.Lenient = False,
    rate: options.Rate = None,
    arrivals: options.Kind = None,
    cv: options.Variation = None,
    prompt_tokens: options.PromptTokens = None,
    output_tokens: options.OutputTokens = None,
    length_scale: options.LengthScale = 1.0,
    max_prompt_tokens: options.MaxPromptTokens = None,
    max_output_tokens: options.MaxOutputTokens = None,
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Duration of the arrivals (default: the whole trace; with --rate "
            f"{DEFAULT_DURATION}, after a warm-up of {WARM_UP_S:.0f} s that does not count).",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Random seed for arrivals, lengths and noise.", min=0)
    ] = 0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the figures to a file, too."),
    ] = None,
    trace_out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a trace of batches and requests that https://ui.perfetto.dev opens.",
        ),
    ] = None,
) -> None:
    """Simulate a manifest's deployment under a load, to the end of its last request.

    Nothing of the manifest has to exist: neither the devices nor the model's weights.
    """
    # Late: whatever starts with ``macroserve``, pods too, would wait for these.
    from macroserve.cli.simulate import place
    from macroserve.cli.simulate.load import requests
    from macroserve.cli.simulate.report import Report
    from macroserve.sim.results import AT_END
    from macroserve.sim.scenario import Scenario
    from macroserve.sim.trace import Trace

    try:
        wanted = load_manifest(manifest)
        mitosis = wanted.spec.mitosis
        asked = requests(context.params, DEFAULT_DURATION, WARM_UP_S)
        scenario = Scenario(
            place.cluster(wanted, model, device, link),
            wanted.strategy,
            wanted.slo,
            high_priority_ratio=wanted.desired_fleet().high_priority_ratio,
            drop_late=wanted.spec.scheduling.drop_late,
            bounds=Bounds(mitosis.lower_bound, mitosis.upper_bound),
        )
        recorded = None if trace_out is None else Trace()
        outcome = scenario.serve(
            asked.arrivals, num_before=asked.num_before, seed=seed, stop=AT_END, trace=recorded
        )
    except (ManifestError, ValueError) as error:
        typer.echo(f"macroserve simulate: {error}", err=True)
        raise typer.Exit(2) from None
    if asked.num_skipped:
        typer.echo(f"{asked.num_skipped:,} bad rows of the trace skipped", err=True)
    for sentence in asked.beyond(wanted.spec.model.max_model_len).sentences():
        typer.echo(f"{sentence}.", err=True)
    report = Report.of(outcome, wanted.spec.instances * scenario.cluster.num_devices)
    Console(highlight=False).print(report.tables(wanted.slo))
    if json_file is not None:
        json_file.write_text(json.dumps(report.document(), indent=2) + "\n")
    if trace_out is not None and recorded is not None:
        recorded.write(trace_out)
