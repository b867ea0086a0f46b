"""Loads whose rate changes, for autoscalers to follow."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Protocol

from macroserve.workload.arrivals import Arrival, gamma_gaps
from macroserve.workload.arrivals import arrivals as drawn
from macroserve.workload.trace import Trace

PROMPT_TOKENS, OUTPUT_TOKENS = 4000, 1000
"""Tokens of every request of a synthetic load: those of llm-d's benchmark."""


class ChangingLoad(Protocol):
    """A frozen dataclass, whose repr determines its arrivals."""

    def arrivals(self, seed: int) -> list[Arrival]: ...


@dataclass(frozen=True, slots=True)
class Stages:
    """Stages of a constant rate each, with equal gaps between requests.

    stages: (requests per second, seconds) of each stage.
    """

    stages: tuple[tuple[float, float], ...]

    @property
    def duration_s(self) -> float:
        return sum(duration_s for _, duration_s in self.stages)

    def arrivals(self, seed: int) -> list[Arrival]:
        """Return the same arrivals for every seed."""
        return [*self._arrivals()]

    def _arrivals(self) -> Iterator[Arrival]:
        start_s = 0.0
        for rate, duration_s in self.stages:
            for index in range(round(rate * duration_s)):
                yield Arrival(start_s + index / rate, PROMPT_TOKENS, OUTPUT_TOKENS)
            start_s += duration_s


@dataclass(frozen=True, slots=True)
class Bursts:
    """Bursts at random times, as in BurstGPT: calm and busy times follow each other, each of an
    exponential length, and gaps are gamma distributed in both.

    calm: (requests per second, mean seconds) of the calm times.
    busy: the same of the busy times.
    variation: coefficient of variation of the gaps.
    """

    duration_s: float
    calm: tuple[float, float]
    busy: tuple[float, float]
    variation: float

    def arrivals(self, seed: int) -> list[Arrival]:
        random = Random(seed)
        found: list[Arrival] = []
        start_s, is_busy = 0.0, False
        while start_s < self.duration_s:
            rate, mean_s = self.busy if is_busy else self.calm
            end_s = min(self.duration_s, start_s + random.expovariate(1 / mean_s))
            gap_s = gamma_gaps(rate, self.variation, random.gammavariate)
            found += drawn(gap_s, lambda: (PROMPT_TOKENS, OUTPUT_TOKENS), start_s, end_s)
            start_s, is_busy = end_s, not is_busy
        return found


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded load, replayed ``speed`` times as fast."""

    trace: Trace
    speed: float

    def arrivals(self, seed: int) -> list[Arrival]:
        """Return the same arrivals for every seed."""
        first_s = self.trace.rows[0].at_s
        return [row._replace(at_s=(row.at_s - first_s) / self.speed) for row in self.trace.rows]
