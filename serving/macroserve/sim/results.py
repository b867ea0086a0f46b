"""Results of simulated requests and runs, and the rules by which they count."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from statistics import mean
from typing import NamedTuple, Self

from macroserve.core.request import DEFAULT_CLASS
from macroserve.core.slo_class import SloClass
from macroserve.core.status import Ended
from macroserve.sim.device import SimRequest
from macroserve.sim.instance import StepOutcome

QUARTERS = 4


class RequestResult(NamedTuple):
    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    wait_s: float
    """Seconds from the arrival to the first token, or to the refusal."""
    tpot_s: float
    """Mean seconds per token after the first."""
    tbt_s: float
    """99th percentile (nearest rank) of the gaps between two tokens, seconds."""
    refused: bool
    attained: bool
    slo_class: str = DEFAULT_CLASS

    @property
    def completion_s(self) -> float:
        """Return the time from the arrival to the last token, seconds."""
        return self.wait_s + (self.num_output_tokens - 1) * self.tpot_s

    @property
    def normalized_s(self) -> float:
        """Return ``completion_s`` divided by the number of tokens."""
        return self.completion_s / self.num_output_tokens


class StepTotals(NamedTuple):
    """Sums over steps of one instance."""

    num: int = 0
    """Number of steps."""
    num_tokens: int = 0
    """Prompt tokens and decodes of all steps."""
    num_preempted: int = 0
    num_without_end: int = 0
    """Steps in which no response ended."""

    def plus(self, outcome: StepOutcome) -> Self:
        """Return the totals with the steps of one more batch, of which only the last may end
        responses."""
        batch, num = outcome.batch, outcome.num_steps
        return type(self)(
            self.num + num,
            self.num_tokens + num * batch.num_tokens,
            self.num_preempted + len(batch.preempted),
            self.num_without_end + num - bool(outcome.finished),
        )


@dataclass(frozen=True, slots=True)
class StopRule:
    """Condition for the end of a run; by default, that all requests have met or missed targets."""

    goal: float = 0.0
    """Attainment; the run also stops once it is out of reach."""
    to_the_end: bool = False
    """Whether the run continues until all requests have ended, for results of single requests."""
    limit_s: float = inf
    """With ``to_the_end``: mean normalized latency; the run also stops once it will be exceeded."""


WHEN_DECIDED = StopRule()
AT_END = StopRule(to_the_end=True)


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run. Single results, KV use, steps and ``one_cache_hit_ratio`` need a run to the
    end."""

    requests: int
    """Requests that count and are known to have met or missed their targets."""
    attained: int
    decided: bool
    """Whether all requests are known, or enough of them to miss the goal."""
    ended_by_class: Mapping[str, Ended] = field(default_factory=dict[str, Ended])
    """The same requests by SLO class, if there are several."""
    results: tuple[RequestResult, ...] = ()
    """Results in order of the requests' ends."""
    kv_use: float = 0.0
    """Mean share of the KV caches with tokens, sampled at arrivals."""
    prefix_cache_hit_ratio: float = 0.0
    """Share of prompt tokens found in prefix caches, including the warm-up."""
    steps: tuple[StepTotals, ...] = ()
    """Totals of each instance's steps that ended within ``steps_s``."""
    steps_s: float = 0.0
    """Seconds from the first request that counts to the last arrival."""
    one_cache_hit_ratio: float | None = None
    """Hit ratio of a single cache of the same total size (``cache_bound``); None without prefix
    caches."""
    num_unsent: int = 0
    """Turns not sent because an earlier one in their conversation was refused."""

    @property
    def attainment(self) -> float:
        """Return the attainment, 1.0 without requests."""
        return self.attained / self.requests if self.requests else 1.0

    def worst_attainment(self, classes: Iterable[SloClass], goal: float) -> float:
        """Return the attainment of the SLO class that is worst relative to its own goal, scaled so
        that it is at least ``goal``, the default class's, if and only if each class attains its
        own."""
        if not self.ended_by_class:
            return self.attainment
        goals = {each.name: each.attainment for each in classes}
        return min(
            goal * (ended.attained / ended.finished / goals.get(name, goal))
            for name, ended in self.ended_by_class.items()
        )

    @property
    def by_class(self) -> dict[str, tuple["RequestResult", ...]]:
        """Return the results by SLO class, sorted by name."""
        names = sorted({result.slo_class for result in self.results})
        return {
            name: tuple(result for result in self.results if result.slo_class == name)
            for name in names
        }

    @property
    def longest_wait_s(self) -> float:
        return max([result.wait_s for result in self.results], default=0.0)

    @property
    def completion_s(self) -> float:
        """Return the mean completion time of the requests not refused. Needs a result."""
        return mean([result.completion_s for result in self.results if not result.refused])

    @property
    def by_size(self) -> tuple[float, ...]:
        """Return the attainment by quarter of the requests, those with the fewest tokens (prompt
        and output) first; empty with fewer results than quarters."""
        num = len(self.results)
        if num < QUARTERS:
            return ()
        ordered = sorted(self.results, key=lambda v: v.num_prompt_tokens + v.num_output_tokens)
        bounds = [num * quarter // QUARTERS for quarter in range(QUARTERS + 1)]
        return tuple(
            mean([result.attained for result in ordered[start:end]])
            for start, end in pairwise(bounds)
        )


SloRule = Callable[[SimRequest], bool]
"""Function that returns whether an ended request met its targets. Rules with the attribute
``ignores_ttft`` set to True ignore the first token."""


def as_client(record: SimRequest) -> bool:
    """Return whether a request met all targets as defined."""
    return is_met(record, record.first_s, record.request.slo.num_slow(record.gaps_s))


def is_met(record: SimRequest, first_s: float, num_slow: int = 0) -> bool:
    """Return whether an ended request met its targets if its first token counts from ``first_s``.

    num_slow: gaps between its tokens that exceed the TBT target.
    """
    request, num_after = record.request, record.num_emitted - 1
    ttft_s, after_s = first_s - request.arrival_s, record.last_s - first_s
    return request.slo.is_met(ttft_s, after_s, num_after, num_slow)
