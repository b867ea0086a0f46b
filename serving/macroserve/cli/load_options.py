"""Options for a load, shared by ``bench serve``, ``simulate`` and ``plan``."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from macroserve.api.units import parse_seconds
from macroserve.workload.client_load import ClientLoad
from macroserve.workload.lengths import SYNTAX, LengthDistribution, parse_lengths
from macroserve.workload.load import Load, LoadLimits, SyntheticLoad, TextLoad, TraceLoad
from macroserve.workload.multi_turn import SYNTAX as TURN_SYNTAX
from macroserve.workload.multi_turn import MultiTurn
from macroserve.workload.servegen import read_servegen
from macroserve.workload.shared_prefix import SYNTAX as SHARED_SYNTAX
from macroserve.workload.shared_prefix import SharedPrefix
from macroserve.workload.sharegpt import CHARACTERS_PER_TOKEN, ShareGpt, read_sharegpt
from macroserve.workload.trace import TimeUnit, read_trace

DEFAULT_LENGTH = "128"

T = TypeVar("T")


class Arrivals(StrEnum):
    """Process of synthetic arrivals."""

    POISSON = "poisson"
    GAMMA = "gamma"


_Load = partial(typer.Option, rich_help_panel="Load")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """A recorded or synthetic load and its lengths, as given."""

    trace: Annotated[
        Path | None,
        _Load(
            metavar="FILE",
            help="Replay a trace: an Azure CSV (dates), Mooncake JSON lines (timestamp in "
            "milliseconds), or JSON lines with arrival_s in seconds.",
        ),
    ] = None
    time_scale: Annotated[
        float | None,
        _Load(metavar="X", help="Replay the trace X times as fast as recorded (default: 1)."),
    ] = None
    trace_unit: Annotated[
        TimeUnit | None,
        _Load(help="Unit of timestamp in JSON lines: s or ms (default: ms, as in Mooncake's)."),
    ] = None
    lenient: Annotated[
        bool,
        _Load("--lenient", help="Skip and count invalid rows of the trace instead of stopping."),
    ] = False
    rate: Annotated[
        float | None,
        _Load(metavar="R", help="Generate a synthetic load of R requests per second."),
    ] = None
    arrivals: Annotated[
        Arrivals | None,
        _Load(help="Arrival process of a synthetic load: poisson or gamma (default: poisson)."),
    ] = None
    cv: Annotated[
        float | None,
        _Load(
            metavar="C",
            help="Coefficient of variation of the gaps between gamma arrivals; above 1 they are "
            "burstier than Poisson arrivals.",
        ),
    ] = None
    prompt_tokens: Annotated[
        str | None,
        _Load(
            metavar="DIST",
            help=f"Prompt lengths of a synthetic load, in tokens: {SYNTAX} "
            f"(default: {DEFAULT_LENGTH}).",
        ),
    ] = None
    output_tokens: Annotated[
        str | None,
        _Load(
            metavar="DIST",
            help=f"Output lengths of a synthetic load, in tokens: {SYNTAX} "
            f"(default: {DEFAULT_LENGTH}).",
        ),
    ] = None
    sharegpt: Annotated[
        Path | None,
        _Load(
            metavar="FILE",
            help="Take prompts from a JSON file in ShareGPT's format, like vLLM's benchmark: each "
            "conversation's first message, and the length of its response.",
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        _Load(
            metavar="FOLDER",
            help="Count the tokens of --sharegpt with the tokenizer.json in this folder "
            f"(default: {CHARACTERS_PER_TOKEN} characters per token).",
        ),
    ] = None
    servegen: Annotated[
        Path | None,
        _Load(
            metavar="FOLDER",
            help="Distribute the requests of --rate like the clients in a ServeGen folder "
            "(chunk-0-trace.csv, chunk-0-dataset.json and so on).",
        ),
    ] = None
    servegen_start: Annotated[
        str | None,
        _Load(
            metavar="DURATION",
            help="Time in the clients' files at which to start, such as 18h (default: 0s).",
        ),
    ] = None
    shared_prefix: Annotated[
        str | None,
        _Load(
            metavar="SPEC",
            help=f"Prompts of a synthetic load share prefixes, such as {SHARED_SYNTAX}: 150 groups "
            "with a prefix of 6,000 tokens each, and 5 prompts per group that continue it with "
            "--prompt-tokens more. Without prompts=5, every prompt continues differently.",
        ),
    ] = None
    multi_turn: Annotated[
        str | None,
        _Load(
            metavar="SPEC",
            help=f"Each arrival of a synthetic load starts a conversation, such as {TURN_SYNTAX}: "
            "5 requests, each a think time (exponential, with a mean of 10 s) after the previous "
            "response. Its prompt is the conversation so far and a new message of "
            "--prompt-tokens. With --sharegpt, at most 5 turns.",
        ),
    ] = None
    length_scale: Annotated[
        float,
        _Load(
            metavar="X",
            help="Multiply all prompt and output lengths by X, such as 0.1 for a small model.",
        ),
    ] = 1.0
    max_prompt_tokens: Annotated[
        int | None, _Load(metavar="N", help="Cut longer prompts to N tokens.")
    ] = None
    max_output_tokens: Annotated[
        int | None, _Load(metavar="N", help="Cut longer outputs to N tokens.")
    ] = None
    seed: Annotated[
        int,
        _Load(
            min=0,
            metavar="N",
            help="Random seed: equal seeds produce equal requests. Change it between runs "
            "against an endpoint that caches prefixes.",
        ),
    ] = 0

    def load(self) -> Load:
        """Return the recorded or synthetic load.

        Raises ValueError for invalid rows and contradictory options.
        """
        if self.trace is not None and self.rate is None:
            given = (
                self.arrivals,
                self.cv,
                self.prompt_tokens,
                self.output_tokens,
                self.sharegpt,
                self.tokenizer,
                self.servegen,
                self.shared_prefix,
                self.multi_turn,
            )
            if any(option is not None for option in given):
                raise ValueError(
                    "--arrivals, --cv, --prompt-tokens, --output-tokens, --sharegpt, "
                    "--tokenizer, --servegen, --shared-prefix and --multi-turn need --rate: "
                    "a trace has its own arrivals and prompts"
                )
            read = read_trace(self.trace, self.lenient, self.trace_unit)
            return TraceLoad(read, 1.0 if self.time_scale is None else self.time_scale)
        if self.rate is not None and self.trace is None:
            if self.time_scale is not None or self.trace_unit is not None or self.lenient:
                raise ValueError("--time-scale, --trace-unit and --lenient need --trace")
            if self.servegen is not None:
                return self._clients(self.rate, self.servegen)
            if self.servegen_start is not None:
                raise ValueError("--servegen-start needs --servegen")
            cv = _gap_cv(self.arrivals, self.cv)
            multi_turn = _spec("--multi-turn", self.multi_turn, MultiTurn.parse)
            if self.sharegpt is not None:
                texts = self._texts(self.sharegpt)
                return TextLoad(self.rate, cv, texts, multi_turn=multi_turn)
            if self.tokenizer is not None:
                raise ValueError("--tokenizer needs --sharegpt")
            return SyntheticLoad(
                self.rate,
                cv,
                _lengths("--prompt-tokens", self.prompt_tokens),
                _lengths("--output-tokens", self.output_tokens),
                _spec("--shared-prefix", self.shared_prefix, SharedPrefix.parse),
                multi_turn=multi_turn,
            )
        raise ValueError("give either --trace FILE or --rate R")

    def _clients(self, rate: float, folder: Path) -> ClientLoad:
        given = (
            *(self.arrivals, self.cv, self.prompt_tokens, self.output_tokens),
            *(self.sharegpt, self.tokenizer, self.shared_prefix, self.multi_turn),
        )
        if any(option is not None for option in given):
            raise ValueError(
                "--arrivals, --cv, --prompt-tokens, --output-tokens, --sharegpt, --tokenizer, "
                "--shared-prefix and --multi-turn go without --servegen: its clients have "
                "their own arrivals and lengths"
            )
        start_s = 0.0
        if self.servegen_start is not None:
            start_s = parse_time("--servegen-start", self.servegen_start)
        return ClientLoad(rate, read_servegen(folder), start_s)

    def _texts(self, path: Path) -> ShareGpt:
        given = (self.prompt_tokens, self.output_tokens, self.shared_prefix, self.max_prompt_tokens)
        if any(option is not None for option in given) or self.length_scale != 1:
            raise ValueError(
                "--prompt-tokens, --output-tokens, --shared-prefix, --max-prompt-tokens and "
                "--length-scale go without --sharegpt: its prompts are texts"
            )
        if self.tokenizer is None:
            return read_sharegpt(path)
        return read_sharegpt(path, token_counter(self.tokenizer))

    def limits(self, duration_s: float, num_requests: int | None = None) -> LoadLimits:
        """Return the limits of a run. Raises ValueError for impossible ones."""
        return LoadLimits(
            duration_s,
            num_requests,
            self.length_scale,
            self.max_prompt_tokens,
            self.max_output_tokens,
        )


def token_counter(folder: Path) -> Callable[[str], int]:
    """Return a function that counts the tokens of a text, with a model folder's tokenizer.

    Raises ValueError for a folder without a readable tokenizer.json, and without the package
    ``tokenizers``.
    """
    try:
        # Imported late, because it comes with an extra.
        from tokenizers import Tokenizer
    except ImportError:
        raise ValueError("--tokenizer needs tokenizers: pip install 'macroserve[ray]'") from None
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--tokenizer: {path}: {error.strerror}") from None
    except Exception:  # the package raises nothing narrower
        raise ValueError(f"--tokenizer: {path} is not a tokenizer") from None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def parse_duration(option: str, text: str) -> float:
    """Return positive seconds from ``1m30s``, ``100ms`` or a number of seconds."""
    seconds = _seconds(option, text)
    if not 0 < seconds < math.inf:
        raise ValueError(f"{option} must be positive, got {text!r}")
    return seconds


def parse_time(option: str, text: str) -> float:
    """Return seconds since a start, 0 or more, in the formats of ``parse_duration``."""
    seconds = _seconds(option, text)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{option} must be 0s or later, got {text!r}")
    return seconds


def _seconds(option: str, text: str) -> float:
    try:
        return float(text) if text[-1:].isdigit() else parse_seconds(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _gap_cv(arrivals: Arrivals | None, cv: float | None) -> float:
    if arrivals is Arrivals.GAMMA:
        if cv is None:
            raise ValueError("--arrivals gamma needs --cv")
        return cv
    if cv is not None:
        raise ValueError("--cv needs --arrivals gamma: Poisson arrivals have a CV of 1")
    return 1.0


def _spec(option: str, text: str | None, parse: Callable[[str], T]) -> T | None:
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _lengths(option: str, text: str | None) -> LengthDistribution:
    try:
        return parse_lengths(text or DEFAULT_LENGTH)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
