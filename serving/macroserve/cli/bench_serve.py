"""The command ``macroserve bench serve``: its options and exit codes."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from macroserve.bench.serve.client import EndpointError, Target
from macroserve.bench.serve.goodput import search_goodput
from macroserve.bench.serve.payload import Endpoint
from macroserve.bench.serve.report import goodput_report, plan_sentence, run_report, write_json
from macroserve.bench.serve.result import Result
from macroserve.bench.serve.run import Bench, run_bench
from macroserve.cli.bench_serve_options import (
    CLASS_SYNTAX,
    DEFAULT_DURATION_S,
    check_outputs,
    choose_duration,
    parse_api_key,
    parse_classes,
    parse_url,
)
from macroserve.cli.failure import fail
from macroserve.cli.load_options import LoadOptions, parse_duration
from macroserve.cli.option_groups import takes_groups
from macroserve.core.request import Slo
from macroserve.workload.load import TraceLoad

MIN_WIDTH = 100
"""Columns of tables written to a file or a pipe."""

_Endpoint = partial(typer.Option, rich_help_panel="Endpoint")
_Load = partial(typer.Option, rich_help_panel="Load")
_Target = partial(typer.Option, rich_help_panel="Targets")
_Output = partial(typer.Option, rich_help_panel="Output")


@takes_groups
def serve(
    context: typer.Context,
    *,
    url: Annotated[
        str, _Endpoint(help="Base URL of the endpoint, with or without /v1.")
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None,
        _Endpoint(help="Model to request (default: the first that the endpoint lists)."),
    ] = None,
    endpoint: Annotated[
        Endpoint,
        _Endpoint(
            help="API to call: completions sends prompts as token IDs, with exact lengths; chat "
            "sends messages of words, with approximate lengths."
        ),
    ] = Endpoint.COMPLETIONS,
    vocab_size: Annotated[
        int,
        _Endpoint(
            min=11,
            metavar="N",
            help="Draw token IDs of prompts from 10 to N - 1; N is at most the vocabulary size.",
        ),
    ] = 2000,
    api_key: Annotated[
        str | None,
        _Endpoint(
            envvar="OPENAI_API_KEY",
            show_default=False,
            help="API key to send; never printed or stored.",
        ),
    ] = None,
    timeout: Annotated[
        str, _Endpoint(metavar="DURATION", help="Time limit of a request, such as 90s or 10m.")
    ] = "10m",
    load_options: LoadOptions,
    duration: Annotated[
        str | None,
        _Load(
            metavar="DURATION",
            help="Duration of the arrivals, such as 90s or 10m (default: the whole trace, or until "
            f"--num-requests; else, and for each probe of --goodput, {DEFAULT_DURATION_S:.0f}s).",
        ),
    ] = None,
    num_requests: Annotated[
        int | None,
        _Load(
            metavar="N", help="Send at most N requests; with --multi-turn, start N conversations."
        ),
    ] = None,
    ttft: Annotated[
        str, _Target(metavar="DURATION", help="Target for the time to first token.")
    ] = "5s",
    tpot: Annotated[
        str,
        _Target(
            metavar="DURATION", help="Target for the mean time per output token after the first."
        ),
    ] = "100ms",
    tbt: Annotated[
        str | None,
        _Target(
            metavar="DURATION",
            help="Target for the time between two output tokens, met by 99 % of the gaps of a "
            "request (default: none).",
        ),
    ] = None,
    slo_class: Annotated[
        list[str] | None,
        _Target(
            metavar="NAME=SHARE,ttft=..,tpot=..",
            help="Send a fraction of the requests, or conversations, with the header X-SLO-Class: "
            f"NAME, and evaluate them by these targets, such as {CLASS_SYNTAX}; may be repeated.",
        ),
    ] = None,
    goodput: Annotated[
        float | None,
        _Target(
            metavar="LEVEL",
            help="Search for the highest load (rate, or time scale of the trace) at which at least "
            "this fraction of requests meets its targets, such as 0.9, starting at the given load.",
        ),
    ] = None,
    json: Annotated[
        Path | None,
        _Output(metavar="FILE", help="Write the summary and each request to a JSON file."),
    ] = None,
    plot: Annotated[
        Path | None,
        _Output(metavar="FILE.png", help="Write a plot of the run, or of the search."),
    ] = None,
) -> None:
    """Send a load to an OpenAI endpoint and report its latencies, SLO attainment and goodput.

    The load is a recorded trace or synthetic arrivals. Requests are sent on schedule, however many
    responses are outstanding (open loop); only the turns of a conversation wait for each other.
    Ctrl-C ends the run and reports the requests so far.
    """
    console = Console(stderr=True)
    try:
        load = load_options.load()
        may_last = goodput is None and (load_options.trace is not None or num_requests is not None)
        duration_s = choose_duration(duration, may_last)
        bench = Bench(
            Target(parse_url(url), parse_duration("--timeout", timeout), parse_api_key(api_key)),
            model,
            endpoint,
            vocab_size,
            load,
            load_options.limits(duration_s, num_requests),
            Slo(
                parse_duration("--ttft", ttft),
                parse_duration("--tpot", tpot),
                None if tbt is None else parse_duration("--tbt", tbt),
            ),
            load_options.seed,
            parse_classes(slo_class or ()),
        )
        search = None
        if goodput is not None:
            highest = load.max_intensity(duration_s)
            search = search_goodput(load.intensity, goodput, max_load=highest)
        check_outputs(json, plot)
        planned = bench.planned(load)
        if not planned:
            raise ValueError("no request arrives within --duration")
    except ValueError as error:
        fail("bench serve", error, 2)
    if isinstance(load, TraceLoad) and load.trace.num_skipped:
        console.print(
            f"{load.trace.num_skipped:,} invalid rows of the trace skipped", style="yellow"
        )
    console.print(plan_sentence(planned), highlight=False)
    try:
        result = asyncio.run(run_bench(bench, search, console))
    except EndpointError as error:
        fail("bench serve", error, 1)

    given = {name: value for name, value in context.params.items() if name != "api_key"}
    if json is not None:
        write_json(json, given | {"model": result.model}, result, bench.slo)
    _print_report(result, bench, goodput)
    if plot is not None:
        _plot(plot, result, bench, goodput)
    if not any(run.summary.num_succeeded for run in result.runs):
        fail("bench serve", "no request succeeded", 1)


def _print_report(result: Result, bench: Bench, level: float | None) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, MIN_WIDTH)
    if level is None:
        console.print(run_report(result.runs[0], bench.slo))
    else:
        console.print(goodput_report(result, bench.load.unit))


def _plot(path: Path, result: Result, bench: Bench, level: float | None) -> None:
    # Imported late: matplotlib comes with an extra and takes a second to load.
    from macroserve.bench.serve.plot import plot_goodput, plot_run

    if level is None:
        plot_run(path, result.model, result.runs[0], bench.slo)
    else:
        plot_goodput(path, result, level, bench.slo, bench.load.unit)
