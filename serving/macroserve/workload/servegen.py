"""ServeGen's clients: rates and lengths of each user of a service.

Format (github.com/alibaba/ServeGen, folders such as ``data/language/m-large``): two files for each
client. ``chunk-0-trace.csv`` has no header; its columns are the start of a window in seconds, the
client's requests per second in it, their coefficient of variation, and the distribution of the gaps
(Gamma, Weibull or none) with its shape and scale. ``chunk-0-dataset.json`` maps the starts of
longer windows to the probabilities of ``input_tokens`` and ``output_tokens``, as texts of Python
dictionaries.
"""

import csv
import re
from bisect import bisect_right
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

MAX_BYTES = 2**26
"""Maximum size of a client's file; published ones have at most 6 MB."""
MAX_CLIENTS = 10_000
MAX_FOLDER_BYTES = 2**30
"""Maximum size of all files, which are kept in memory; those of ``m-large`` have 0.12 GB."""
MAX_START_S = 10**9
MAX_RATE = 10_000.0
"""Maximum requests per second of a client."""
MAX_TOKENS = 10**9
SHAPES = (1e-4, 1e6)
"""Range of the distributions' shape parameters."""

_TRACE = re.compile(r"chunk-(\d{1,9})-trace\.csv")
_KEY = re.compile(r"(\d+):")


class Pattern(StrEnum):
    """Distribution of the gaps between a client's requests."""

    GAMMA = "Gamma"
    WEIBULL = "Weibull"

    def draw(self, shape: float, number: int, rng: np.random.Generator) -> np.ndarray:
        """Draw gaps of arbitrary scale."""
        if self is Pattern.GAMMA:
            return rng.gamma(shape, size=number)
        return rng.weibull(shape, size=number)


class RateWindow(NamedTuple):
    """Period in which a client's rate is constant."""

    rate: float
    """Requests per second."""
    pattern: Pattern
    shape: float
    """Shape of the gaps' distribution."""


class Client(NamedTuple):
    """One user of a service, whose rate and lengths change over time."""

    windows: Mapping[int, RateWindow]
    """Windows with requests, by start in seconds."""
    lengths: Mapping[int, tuple[str, str]]
    """Unparsed length distributions of prompts and outputs, by the start of their validity, in
    order."""
    source: Path = Path()
    """File of the lengths."""

    def lengths_at(self, start_s: int) -> tuple["TokenHistogram", "TokenHistogram"] | None:
        """Return the lengths of prompts and outputs at a time; None if unknown. Raises ValueError
        that names the file and the fault."""
        starts = list(self.lengths)
        index = bisect_right(starts, start_s) - 1
        if index < 0:
            return None
        try:
            prompts, outputs = map(_tokens, self.lengths[starts[index]])
        except ValueError as fault:
            raise ValueError(f"{self.source}, {starts[index]} s: {fault}") from None
        return (prompts, outputs) if prompts and outputs else None


class TokenHistogram(NamedTuple):
    """Probabilities of numbers of tokens."""

    lengths: np.ndarray
    probabilities: np.ndarray

    def draw(self, number: int, rng: np.random.Generator) -> list[int]:
        return rng.choice(self.lengths, number, p=self.probabilities).tolist()


class _Lengths(msgspec.Struct):
    input_tokens: str
    output_tokens: str


def read_servegen(folder: Path) -> tuple[Client, ...]:
    """Read the clients of a folder. Raises ValueError that names the file and the fault."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder of ServeGen's clients")
    found = [match for path in folder.iterdir() if (match := _TRACE.fullmatch(path.name))]
    numbers = sorted(int(match[1]) for match in found)
    if not 0 < len(numbers) <= MAX_CLIENTS:
        raise ValueError(f"{folder} has {len(numbers):,} files like chunk-0-trace.csv")
    if sum(path.stat().st_size for path in folder.glob("chunk-*")) > MAX_FOLDER_BYTES:
        raise ValueError(
            f"{folder} is larger than {MAX_FOLDER_BYTES // 2**30} GiB: leave clients out"
        )
    return tuple(_read_client(folder, number) for number in numbers)


def _read_client(folder: Path, number: int) -> Client:
    source = folder / f"chunk-{number}-dataset.json"
    windows = _read_windows(folder / f"chunk-{number}-trace.csv")
    return Client(windows, _read_lengths(source), source)


def _read_windows(path: Path) -> dict[int, RateWindow]:
    windows: dict[int, RateWindow] = {}
    for number, line in enumerate(_text(path).splitlines(), start=1):
        try:
            start, rate, _, pattern, shape, _ = next(csv.reader([line]))
            if not pattern:
                continue
            start_s, window = int(start), RateWindow(float(rate), Pattern(pattern), float(shape))
        except (ValueError, csv.Error):
            raise ValueError(
                f"{path}, line {number}: expected start, rate, CV, Gamma or Weibull, shape and "
                f"scale, got {line[:100]!r}"
            ) from None
        is_possible = 0 <= start_s <= MAX_START_S and 0 <= window.rate <= MAX_RATE
        if not (is_possible and SHAPES[0] <= window.shape <= SHAPES[1]):
            raise ValueError(f"{path}, line {number}: a number is out of range")
        if window.rate:
            windows[start_s] = window
    return windows


def _read_lengths(path: Path) -> dict[int, tuple[str, str]]:
    try:
        found = msgspec.json.decode(_text(path), type=dict[int, _Lengths])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"{path} is not a data set of ServeGen's: {error}") from None
    # A stretch without requests has no lengths.
    return {
        start_s: (each.input_tokens, each.output_tokens)
        for start_s, each in sorted(found.items())
        if "{}" not in (each.input_tokens, each.output_tokens)
    }


def _tokens(text: str) -> TokenHistogram | None:
    """Parse a text like ``{81: 0.4, 82: 0.6}``; return None if it is empty."""
    try:
        found = msgspec.json.decode(_KEY.sub(r'"\1":', text), type=dict[int, float])
    except (msgspec.MsgspecError, RecursionError):
        raise ValueError(f"expected tokens with probabilities, got {text[:100]!r}") from None
    if not found:
        return None
    lengths = np.array([min(max(1, each), MAX_TOKENS) for each in found])
    weights = np.array(list(found.values()))
    if not (weights.min() >= 0 and 0.99 < weights.sum() < 1.01):
        raise ValueError("the probabilities are not between 0 and 1, or do not add up to 1")
    return TokenHistogram(lengths, weights / weights.sum())


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path} is larger than {MAX_BYTES // 2**20} MiB")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file") from None
