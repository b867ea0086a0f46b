"""The options that name a load, and what they come to: one sentence for whatever is wrong."""

import math
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

from macroserve.api.units import parse_seconds
from macroserve.workload.lengths import SYNTAX, LengthDistribution, parse_lengths
from macroserve.workload.load import Load, SyntheticLoad, TraceLoad
from macroserve.workload.trace import TimeUnit, read_trace

DEFAULT_LENGTH = "128"


class Arrivals(StrEnum):
    POISSON = "poisson"
    GAMMA = "gamma"


_Load = partial(typer.Option, rich_help_panel="Load")

TraceFile = Annotated[
    Path | None,
    _Load(
        "--trace",
        metavar="FILE",
        help="Replay a trace: an Azure CSV (dates), Mooncake JSON lines (timestamp in "
        "milliseconds), or JSON lines with arrival_s in seconds.",
    ),
]
TraceUnit = Annotated[
    TimeUnit | None,
    _Load(metavar="s|ms", help="Unit of timestamp in JSON lines; by default ms, as Mooncake's."),
]
TimeScale = Annotated[
    float | None, _Load(metavar="X", help="Replay the trace this many times as fast.")
]
Lenient = Annotated[bool, _Load("--lenient", help="Skip and count bad rows of the trace.")]
Rate = Annotated[float | None, _Load(metavar="R", help="Synthetic load: requests per second.")]
Kind = Annotated[
    Arrivals | None,
    _Load(help="Arrival process of a synthetic load (default: poisson)."),
]
Variation = Annotated[
    float | None, _Load(metavar="C", help="Coefficient of variation of gamma gaps.")
]
PromptTokens = Annotated[
    str | None,
    _Load(metavar="DIST", help=f"Prompt lengths: {SYNTAX} (default: {DEFAULT_LENGTH})."),
]
OutputTokens = Annotated[
    str | None,
    _Load(metavar="DIST", help=f"Output lengths: {SYNTAX} (default: {DEFAULT_LENGTH})."),
]
LengthScale = Annotated[
    float, _Load(metavar="X", help="Multiply all lengths by this, for small models.")
]
MaxPromptTokens = Annotated[int | None, _Load(metavar="N", help="Cut prompts that are longer.")]
MaxOutputTokens = Annotated[int | None, _Load(metavar="N", help="Cut responses that are longer.")]


def parse_duration(option: str, text: str) -> float:
    """Positive seconds from ``1m30s``, ``100ms`` or a bare number of seconds."""
    try:
        seconds = float(text) if text[-1:].isdigit() else parse_seconds(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
    if not 0 < seconds < math.inf:
        raise ValueError(f"{option} must be positive, got {text!r}")
    return seconds


def given_load(given: Mapping[str, Any]) -> Load:
    """``choose_load`` with those of a command's parameters, by name, that are its own."""
    return choose_load(**{name: given[name] for name in signature(choose_load).parameters})


def choose_load(
    *,
    trace: Path | None,
    time_scale: float | None,
    trace_unit: TimeUnit | None,
    lenient: bool,
    rate: float | None,
    arrivals: Arrivals | None,
    cv: float | None,
    prompt_tokens: str | None,
    output_tokens: str | None,
) -> Load:
    """The load that the options name: recorded or synthetic, never a mixture of both."""
    if trace is not None and rate is None:
        if arrivals or cv is not None or prompt_tokens or output_tokens:
            raise ValueError(
                "--arrivals, --cv, --prompt-tokens and --output-tokens go with --rate: "
                "a trace has arrivals and lengths of its own"
            )
        read = read_trace(trace, lenient, trace_unit)
        return TraceLoad(read, 1.0 if time_scale is None else time_scale)
    if rate is not None and trace is None:
        if time_scale is not None or trace_unit is not None or lenient:
            raise ValueError("--time-scale, --trace-unit and --lenient go with --trace")
        return SyntheticLoad(
            rate,
            _gap_cv(arrivals, cv),
            _lengths("--prompt-tokens", prompt_tokens),
            _lengths("--output-tokens", output_tokens),
        )
    raise ValueError("give either --trace FILE or --rate R")


def _gap_cv(arrivals: Arrivals | None, cv: float | None) -> float:
    if arrivals is Arrivals.GAMMA:
        if cv is None:
            raise ValueError("--arrivals gamma needs --cv")
        return cv
    if cv is not None:
        raise ValueError("--cv goes with --arrivals gamma: Poisson arrivals have a CV of 1")
    return 1.0


def _lengths(option: str, text: str | None) -> LengthDistribution:
    try:
        return parse_lengths(text or DEFAULT_LENGTH)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
