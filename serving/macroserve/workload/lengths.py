"""Distributions of token counts, as given on a command line or in a paper."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np

SYNTAX = "128, uniform:10-200, exponential:mean=200 or lognormal:mean=340,median=148"

WIDEST = 4.0
"""Maximum standard deviation of the logarithm considered in the fit of a capped lognormal."""


class LengthDistribution(ABC):
    """A distribution of token counts."""

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> int:
        """Draw one length in tokens, at least one."""


@dataclass(frozen=True, slots=True)
class Constant(LengthDistribution):
    num_tokens: int

    def __post_init__(self) -> None:
        if self.num_tokens < 1:
            raise ValueError("a length must be at least one token")

    def draw(self, rng: np.random.Generator) -> int:
        return self.num_tokens


@dataclass(frozen=True, slots=True)
class Uniform(LengthDistribution):
    """Uniform distribution over the whole numbers from ``low`` to ``high``, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError("the range must run upwards from at least one token")

    def draw(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high, endpoint=True))


@dataclass(frozen=True, slots=True)
class Exponential(LengthDistribution):
    """Exponential distribution, rounded."""

    mean: float

    def __post_init__(self) -> None:
        if not 1 <= self.mean < math.inf:
            raise ValueError("the mean must be at least one token")

    def draw(self, rng: np.random.Generator) -> int:
        return max(1, round(rng.exponential(self.mean)))


@dataclass(frozen=True)
class Lognormal(LengthDistribution):
    """Lognormal distribution with a given mean and median.

    Raises ValueError if no lognormal has both.
    """

    mean: float
    """Mean in tokens, after the cap."""
    median: float
    most: int | None = None
    """Cap of lengths in tokens, if any."""

    def __post_init__(self) -> None:
        if self.most is None:
            if not 1 <= self.median <= self.mean < math.inf:
                raise ValueError("the mean must not be below the median, nor the median below one")
        elif not 1 <= self.median < self.most:
            raise ValueError(f"the median lies between one token and the most, got {self}")
        elif abs(self._capped_mean(self.most, self.sigma) / self.mean - 1) > 0.01:
            raise ValueError(f"no lognormal that is capped there has that mean, got {self}")

    @cached_property
    def sigma(self) -> float:
        """Return the standard deviation of the logarithm."""
        if self.most is None:
            # The median is exp(mu), and the mean is exp(mu + sigma**2 / 2).
            return math.sqrt(2 * math.log(self.mean / self.median))
        most = self.most
        candidates = (WIDEST * i / 4000 for i in range(1, 4001))
        return min(candidates, key=lambda sigma: abs(self._capped_mean(most, sigma) - self.mean))

    def draw(self, rng: np.random.Generator | Random) -> int:
        lognormal = rng.lognormvariate if isinstance(rng, Random) else rng.lognormal
        drawn = max(1, round(lognormal(math.log(self.median), self.sigma)))
        return drawn if self.most is None else min(self.most, drawn)

    def _capped_mean(self, most: int, sigma: float) -> float:
        """Return the mean after the cap of the lognormal with this median and ``sigma``."""
        cap = (math.log(most) - math.log(self.median)) / sigma
        below = self.median * math.exp(sigma**2 / 2) * _normal_cdf(cap - sigma)
        return below + most * (1 - _normal_cdf(cap))


def _normal_cdf(value: float) -> float:
    return (1 + math.erf(value / math.sqrt(2))) / 2


def parse_lengths(text: str) -> LengthDistribution:
    """Parse a distribution as in ``SYNTAX``; raise ValueError with a sentence for another text."""
    name, _, arguments = text.partition(":")
    try:
        match name:
            case "uniform":
                low, _, high = arguments.partition("-")
                return Uniform(_whole(low), _whole(high))
            case "exponential":
                return Exponential(*_numbers(arguments, "mean"))
            case "lognormal":
                mean, median = _numbers(arguments, "mean", "median")
                return Lognormal(mean, median)
            case _:
                return Constant(_whole(text))
    except ValueError as error:
        raise ValueError(f"{text!r} is not a token length: {error}; write {SYNTAX}") from None


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _numbers(arguments: str, *names: str) -> list[float]:
    """Return the values of ``mean=340,median=148`` in the order of ``names``."""
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
