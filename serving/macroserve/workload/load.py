"""What to send and when: the plan of a run, known in full before the first request leaves."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Protocol, Self

import numpy as np

from macroserve.workload.arrivals import PlannedRequest, arrival_times
from macroserve.workload.lengths import LengthDistribution
from macroserve.workload.trace import Trace


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a plan is cut to. Lengths are scaled first and capped then, and never fall below one."""

    duration_s: float = math.inf
    num_requests: int | None = None
    length_scale: float = 1.0
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        if not (self.duration_s > 0 and 0 < self.length_scale < math.inf):
            raise ValueError("the duration and the length scale must be positive")
        for limit in (self.num_requests, self.max_prompt_tokens, self.max_output_tokens):
            if limit is not None and limit < 1:
                raise ValueError("a run has at least one request, of one token in and one out")


class Load(Protocol):
    """A source of requests whose intensity can be set, which a search for goodput does.

    intensity: requests per second of a synthetic load, the time scale of a trace. unit: of it.
    """

    @property
    def intensity(self) -> float: ...

    @property
    def unit(self) -> str: ...

    def at(self, intensity: float) -> Self:
        """The same load at another intensity: same lengths, same pattern of arrivals."""
        ...

    def max_intensity(self, duration_s: float) -> float:
        """The highest intensity at which the load lasts for ``duration_s``."""
        ...

    def requests(self, seed: int) -> Iterator[PlannedRequest]:
        """The requests in order of arrival. The same seed gives the same requests."""
        ...


@dataclass(frozen=True, slots=True)
class SyntheticLoad:
    """Requests without end at ``rate`` per second, with gaps of coefficient of variation ``cv``."""

    rate: float
    cv: float
    prompt_lengths: LengthDistribution
    output_lengths: LengthDistribution

    def __post_init__(self) -> None:
        if not 0 < self.rate < math.inf:
            raise ValueError(f"the rate must be positive, got {self.rate}")
        if self.cv != 0 and not 0.001 <= self.cv <= 1000:
            raise ValueError(f"the CV of the arrivals must be 0, or 0.001 to 1000, got {self.cv}")

    @property
    def intensity(self) -> float:
        return self.rate

    @property
    def unit(self) -> str:
        return "req/s"

    def at(self, intensity: float) -> Self:
        return replace(self, rate=intensity)

    def max_intensity(self, duration_s: float) -> float:
        return math.inf

    def requests(self, seed: int) -> Iterator[PlannedRequest]:
        # A stream of its own for each quantity: another rate or another length distribution
        # leaves the other draws as they were.
        arrivals, prompts, outputs = np.random.default_rng(seed).spawn(3)
        for arrival_s in arrival_times(self.rate, self.cv, arrivals):
            yield PlannedRequest(
                arrival_s,
                max(1, round(self.prompt_lengths.draw(prompts))),
                max(1, round(self.output_lengths.draw(outputs))),
            )


@dataclass(frozen=True, slots=True)
class TraceLoad:
    """A recorded load, ``time_scale`` times as fast."""

    trace: Trace
    time_scale: float

    def __post_init__(self) -> None:
        if not 0 < self.time_scale < math.inf:
            raise ValueError(f"the time scale must be positive, got {self.time_scale}")

    @property
    def intensity(self) -> float:
        return self.time_scale

    @property
    def unit(self) -> str:
        return "x speed"

    def at(self, intensity: float) -> Self:
        return replace(self, time_scale=intensity)

    def max_intensity(self, duration_s: float) -> float:
        return self.trace.rows[-1].arrival_s / duration_s

    def requests(self, seed: int) -> Iterator[PlannedRequest]:
        for row in self.trace.rows:
            yield replace(row, arrival_s=row.arrival_s / self.time_scale)


def plan(load: Load, bounds: Bounds, seed: int) -> tuple[PlannedRequest, ...]:
    """The requests of one run, in order of arrival. Bounds must end a load that has no end."""
    timely = takewhile(lambda r: r.arrival_s < bounds.duration_s, load.requests(seed))
    return tuple(
        PlannedRequest(
            request.arrival_s,
            _bounded(request.num_prompt_tokens, bounds.length_scale, bounds.max_prompt_tokens),
            _bounded(request.num_output_tokens, bounds.length_scale, bounds.max_output_tokens),
        )
        for request in islice(timely, bounds.num_requests)
    )


def _bounded(num_tokens: int, scale: float, cap: int | None) -> int:
    scaled = max(1, round(num_tokens * scale))
    return scaled if cap is None else min(scaled, cap)
