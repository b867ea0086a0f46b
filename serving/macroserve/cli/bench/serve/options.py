"""From words on the command line to configuration: one sentence for whatever is wrong."""

import math
import os
import re
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from macroserve.cli.bench.serve.lengths import LengthDistribution, parse_lengths
from macroserve.cli.bench.serve.trace import read_trace
from macroserve.cli.bench.serve.workload import Load, SyntheticLoad, TraceLoad
from macroserve.core.units import parse_seconds

DEFAULT_LENGTH = "128"
DEFAULT_DURATION_S = 60.0
_URL = re.compile(r"https?://(\[[0-9a-fA-F:]+\]|[^][:/?#@\s]+)(:[0-9]+)?(/[^?#\s]*)?")
"""Without user names, queries and fragments, which have no meaning here."""


class Arrivals(StrEnum):
    POISSON = "poisson"
    GAMMA = "gamma"


def parse_duration(option: str, text: str) -> float:
    """Positive seconds from ``1m30s``, ``100ms`` or a bare number of seconds."""
    try:
        seconds = float(text) if text[-1:].isdigit() else parse_seconds(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
    if not 0 < seconds < math.inf:
        raise ValueError(f"{option} must be positive, got {text!r}")
    return seconds


def choose_duration(text: str | None, may_last: bool) -> float:
    """How long to send, seconds; without end only where something else ends the load."""
    if text is not None:
        return parse_duration("--duration", text)
    return math.inf if may_last else DEFAULT_DURATION_S


def parse_url(text: str) -> str:
    """The base of an endpoint, from an address with or without its ``/v1``."""
    if not _URL.fullmatch(text):
        raise ValueError(f"--url must be like http://127.0.0.1:8000, got {text!r}")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def parse_api_key(text: str | None) -> str | None:
    """Without the line end that keys read from files bring along. The key stays out of errors."""
    key = (text or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ValueError("--api-key holds characters that no HTTP header can carry")
    return key or None


def choose_load(
    *,
    trace: Path | None,
    time_scale: float | None,
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
        return TraceLoad(read_trace(trace, lenient), 1.0 if time_scale is None else time_scale)
    if rate is not None and trace is None:
        if time_scale is not None or lenient:
            raise ValueError("--time-scale and --lenient go with --trace")
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


def check_outputs(json: Path | None, plot: Path | None) -> None:
    """Raises ValueError now for what would fail after the run."""
    for option, path in (("--json", json), ("--plot", plot)):
        if path is None:
            continue
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{option}: cannot write {path}")
    if plot is not None and find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'macroserve[bench]'")
