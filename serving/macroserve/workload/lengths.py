"""How long prompts and answers are: distributions of token counts, written on a command line."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

SYNTAX = "128, uniform:10-200, exponential:mean=200 or lognormal:mean=340,median=148"


class LengthDistribution(ABC):
    """A distribution of token counts."""

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> float:
        """One length in tokens, not yet rounded."""


@dataclass(frozen=True, slots=True)
class Constant(LengthDistribution):
    num_tokens: int

    def __post_init__(self) -> None:
        if self.num_tokens < 1:
            raise ValueError("a length is at least one token")

    def draw(self, rng: np.random.Generator) -> float:
        return self.num_tokens


@dataclass(frozen=True, slots=True)
class Uniform(LengthDistribution):
    """Every whole number from ``low`` to ``high``, both included, equally often."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError("the range must run upwards from at least one token")

    def draw(self, rng: np.random.Generator) -> float:
        return float(rng.integers(self.low, self.high, endpoint=True))


@dataclass(frozen=True, slots=True)
class Exponential(LengthDistribution):
    mean: float

    def __post_init__(self) -> None:
        if not 1 <= self.mean < math.inf:
            raise ValueError("the mean is at least one token")

    def draw(self, rng: np.random.Generator) -> float:
        return rng.exponential(self.mean)


@dataclass(frozen=True, slots=True)
class Lognormal(LengthDistribution):
    """Fitted to a mean and a median, the two figures that papers give of their data sets."""

    mean: float
    median: float

    def __post_init__(self) -> None:
        if not 1 <= self.median <= self.mean < math.inf:
            raise ValueError("the mean must not be below the median, nor the median below one")

    def draw(self, rng: np.random.Generator) -> float:
        # The median is exp(mu), and the mean is exp(mu + sigma**2 / 2).
        sigma = math.sqrt(2 * math.log(self.mean / self.median))
        return rng.lognormal(math.log(self.median), sigma)


def parse_lengths(text: str) -> LengthDistribution:
    """The distribution that ``text`` names, see ``SYNTAX``; raises ValueError with a sentence."""
    name, _, arguments = text.partition(":")
    try:
        match name:
            case "uniform":
                low, _, high = arguments.partition("-")
                return Uniform(_whole(low), _whole(high))
            case "exponential":
                return Exponential(*_numbers(arguments, "mean"))
            case "lognormal":
                return Lognormal(*_numbers(arguments, "mean", "median"))
            case _:
                return Constant(_whole(text))
    except ValueError as error:
        raise ValueError(f"{text!r} is not a token length: {error}; write {SYNTAX}") from None


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _numbers(arguments: str, *names: str) -> list[float]:
    """The values of ``mean=340,median=148`` in the order of ``names``, in any order as written."""
    values: dict[str, str] = {}
    for argument in arguments.split(","):
        name, _, value = argument.partition("=")
        values[name.strip()] = value
    if values.keys() != set(names):
        raise ValueError(f"it takes {' and '.join(names)}")
    try:
        return [float(values[name]) for name in names]
    except ValueError:
        raise ValueError(f"{arguments!r} does not give numbers") from None
