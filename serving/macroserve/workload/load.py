"""Loads, and the plan of a run: all arrivals, known before the first request is sent."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice, takewhile
from typing import Protocol, Self

import numpy as np

from macroserve.workload.arrivals import Arrival, Turn, arrivals, gamma_gaps
from macroserve.workload.lengths import LengthDistribution
from macroserve.workload.multi_turn import MultiTurn
from macroserve.workload.shared_prefix import SharedPrefix
from macroserve.workload.sharegpt import ShareGpt
from macroserve.workload.trace import Trace


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """Limits of a run. Lengths are first scaled, then capped, to at least one token."""

    duration_s: float = math.inf
    num_requests: int | None = None
    """Maximum number of requests, or of conversations in a load of these."""
    length_scale: float = 1.0
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        if not (self.duration_s > 0 and 0 < self.length_scale < math.inf):
            raise ValueError("the duration and the length scale must be positive")
        for limit in (self.num_requests, self.max_prompt_tokens, self.max_output_tokens):
            if limit is not None and limit < 1:
                raise ValueError("a run has at least one request, of one token in and one out")

    def applied(self, arrival: Arrival) -> Arrival:
        """Return the arrival with all lengths scaled and capped, and blocks scaled."""
        turns = [
            turn._replace(
                num_message_tokens=self._prompt(turn.num_message_tokens),
                num_output_tokens=self._output(turn.num_output_tokens),
            )
            for turn in arrival.turns
        ]
        return arrival._replace(
            num_prompt_tokens=self._prompt(arrival.num_prompt_tokens),
            num_output_tokens=self._output(arrival.num_output_tokens),
            block_tokens=_limited(arrival.block_tokens, self.length_scale, None),
            turns=tuple(turns),
        )

    def _prompt(self, num_tokens: int) -> int:
        return _limited(num_tokens, self.length_scale, self.max_prompt_tokens)

    def _output(self, num_tokens: int) -> int:
        return _limited(num_tokens, self.length_scale, self.max_output_tokens)


class Load(Protocol):
    """A source of requests with an intensity, which a search for goodput varies."""

    @property
    def intensity(self) -> float:
        """Return the requests per second of a synthetic load, or the time scale of a trace."""
        ...

    @property
    def unit(self) -> str:
        """Return the displayed unit of the intensity."""
        ...

    def at(self, intensity: float) -> Self:
        """Return the load at another intensity, with the same lengths and pattern of arrivals."""
        ...

    def max_intensity(self, duration_s: float) -> float:
        """Return the highest intensity at which the load lasts for ``duration_s``."""
        ...

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """Return the requests in order of arrival, which depend on the seed alone."""
        ...


@dataclass(frozen=True, slots=True)
class EndlessLoad:
    """An endless load with random gaps. Raises ValueError for an impossible arrival process."""

    rate: float
    """Arrivals per second."""
    cv: float
    """Coefficient of variation of the gaps; see ``gamma_gaps``."""
    multi_turn: MultiTurn | None = field(default=None, kw_only=True)
    """Conversations that the arrivals begin, if any."""

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
        return "conversations/s" if self.multi_turn else "req/s"

    def at(self, intensity: float) -> Self:
        return replace(self, rate=intensity)

    def max_intensity(self, duration_s: float) -> float:
        return math.inf


@dataclass(frozen=True, slots=True)
class SyntheticLoad(EndlessLoad):
    """An endless load with random lengths."""

    prompt_lengths: LengthDistribution
    """Lengths of the prompts without shared prefixes."""
    output_lengths: LengthDistribution
    shared: SharedPrefix | None = None

    def __post_init__(self) -> None:
        EndlessLoad.__post_init__(self)
        if self.multi_turn and self.shared and self.shared.num_prompts is not None:
            raise ValueError(
                "conversations share only the prefixes of groups: omit prompts in --shared-prefix"
            )

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        # One random stream per quantity, so that changing one leaves the draws of the others.
        gaps, prompts, outputs, shared, thinks, *further = np.random.default_rng(seed).spawn(7)
        drawn = arrivals(
            gamma_gaps(self.rate, self.cv, gaps.gamma), partial(self._lengths, prompts, outputs)
        )
        if self.multi_turn:
            drawn = self.multi_turn.applied(drawn, partial(self._lengths, *further), thinks)
        return self.shared.applied(drawn, shared) if self.shared else drawn

    def _lengths(
        self, prompts: np.random.Generator, outputs: np.random.Generator
    ) -> tuple[int, int]:
        return self.prompt_lengths.draw(prompts), self.output_lengths.draw(outputs)


@dataclass(frozen=True, slots=True)
class TextLoad(EndlessLoad):
    """An endless load of a data set's conversations, in a random order that repeats.

    ``multi_turn`` limits the turns of a conversation; without it only first messages are sent.
    """

    texts: ShareGpt

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        gaps, orders, thinks = np.random.default_rng(seed).spawn(3)
        conversations = self.texts.conversations
        order = orders.permutation(len(conversations)).tolist()
        gap_s = gamma_gaps(self.rate, self.cv, gaps.gamma)
        at_s = 0.0
        for number in count():
            at_s += gap_s()
            index = order[number % len(order)]
            first, *others = conversations[index]
            turns: list[Turn] = []
            if self.multi_turn:
                turns = [
                    Turn(
                        self.multi_turn.think_s(thinks),
                        each.num_message_tokens,
                        each.num_output_tokens,
                        each.text,
                    )
                    for each in others[: self.multi_turn.num_turns - 1]
                ]
            yield Arrival(
                at_s,
                first.num_message_tokens,
                first.num_output_tokens,
                block_ids=(index,),
                is_open=True,
                turns=tuple(turns),
                text=first.text,
            )


@dataclass(frozen=True, slots=True)
class TraceLoad:
    """A recorded load, replayed ``time_scale`` times as fast."""

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
        return self.trace.rows[-1].at_s / duration_s

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        for row in self.trace.rows:
            yield row._replace(at_s=row.at_s / self.time_scale)


def plan(load: Load, limits: LoadLimits, seed: int) -> tuple[Arrival, ...]:
    """Return the requests of a run in order of arrival. The limits must end an endless load."""
    timely = takewhile(lambda arrival: arrival.at_s < limits.duration_s, load.arrivals(seed))
    return tuple(limits.applied(arrival) for arrival in islice(timely, limits.num_requests))


def _limited(num_tokens: int, scale: float, cap: int | None) -> int:
    scaled = max(1, round(num_tokens * scale))
    return scaled if cap is None else min(scaled, cap)
