"""Results of simulated requests and runs, and the rules by which they count."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from statistics import mean
from typing import NamedTuple

from macroserve.core.request import DEFAULT_CLASS
from macroserve.core.slo_class import SloClass
from macroserve.core.status import Ended
from macroserve.sim.device import SimRequest
from macroserve.sim.step_totals import StepTotals

QUARTERS = 4


class RequestResult(NamedTuple):
    """The result of one request."""

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    wait_s: float
    """Seconds from the arrival to the first token, or to the refusal."""
    tpot_s: float
    """Mean seconds per token after the first."""
    tbt_s: float
    """The 99th percentile (nearest rank) of the gaps between two tokens, in seconds."""
    refused: bool
    attained: bool
    slo_class: str = DEFAULT_CLASS
    """Name of its SLO class."""

    @property
    def completion_s(self) -> float:
        """Return the time from the arrival to the last token, seconds."""
        return self.wait_s + (self.num_output_tokens - 1) * self.tpot_s

    @property
    def normalized_s(self) -> float:
        """Return the time from the arrival to the last token divided by the number of tokens,
        seconds."""
        return self.completion_s / self.num_output_tokens


@dataclass(frozen=True, slots=True)
class StopRule:
    """A run stops when each request that counts is known to attain or to miss its targets."""

    goal: float = 0.0
    """An attainment; the run also stops as soon as it is out of reach."""
    to_the_end: bool = False
    """True: the run goes on until each request has ended, which takes longer than to know that a
    request is late. Only then are there results of single requests."""
    limit_s: float = inf
    """With ``to_the_end``: the run also stops once the mean normalized latency is sure to exceed
    this."""


WHEN_DECIDED = StopRule()
AT_END = StopRule(to_the_end=True)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run: the requests that count, and how many attained their targets."""

    requests: int
    """Requests that are known to attain or to miss their targets."""
    attained: int
    decided: bool
    """True if all requests are known, or so many that the goal is missed."""
    ended_by_class: Mapping[str, Ended] = field(default_factory=dict[str, Ended])
    """The same requests by the name of their SLO class, where there are several."""
    results: tuple[RequestResult, ...] = ()
    """Results in the order in which requests ended; empty unless the run went to the end."""
    kv_use: float = 0.0
    """Mean share of the KV caches that held tokens as each request arrived, if the run went to the
    end."""
    prefix_cache_hit_ratio: float = 0.0
    """Share of the prompt tokens begun that the prefix caches had; warm-up included."""
    steps: tuple[StepTotals, ...] = ()
    """Totals of each instance's steps that ended within ``steps_s``, if the run went to the end."""
    steps_s: float = 0.0
    """Seconds from the first request that counts to the last arrival."""
    one_cache_hit_ratio: float | None = None
    """Share of the prompt tokens that one cache as large as all instances' together would have had,
    in order of arrival, warm-up included; None unless there are prefix caches and the run went to
    the end."""
    num_unsent: int = 0
    """Turns that were not sent, as one before them in their conversation was refused."""

    @property
    def attainment(self) -> float:
        """Return the attainment, 1.0 for a run without requests."""
        return self.attained / self.requests if self.requests else 1.0

    def worst_attainment(self, classes: Iterable[SloClass], goal: float) -> float:
        """Return the attainment of the SLO class that is worst off by its own goal, on the scale of
        the default one: at least ``goal`` if and only if each class attains its own.

        goal: attainment that the default class is to reach.
        """
        if not self.ended_by_class:
            return self.attainment
        goals = {each.name: each.attainment for each in classes}
        return min(
            goal * (ended.attained / ended.finished / goals.get(name, goal))
            for name, ended in self.ended_by_class.items()
        )

    @property
    def by_class(self) -> dict[str, tuple["RequestResult", ...]]:
        """Return the results by the name of their SLO class, in the order of the names."""
        names = sorted({result.slo_class for result in self.results})
        return {
            name: tuple(result for result in self.results if result.slo_class == name)
            for name in names
        }

    @property
    def longest_wait_s(self) -> float:
        return max([result.wait_s for result in self.results], default=0.0)

    @property
    def normalized_latency_s(self) -> float:
        """Return the mean normalized latency of the requests not refused. Needs a result."""
        return mean([result.normalized_s for result in self.results if not result.refused])

    @property
    def completion_s(self) -> float:
        """Return the mean completion time of the requests not refused. Needs a result."""
        return mean([result.completion_s for result in self.results if not result.refused])

    @property
    def throughput(self) -> float:
        """Return the requests served per second, from the first arrival to the last token. Needs a
        result."""
        served = [result for result in self.results if not result.refused]
        ended_s = max(result.arrival_s + result.completion_s for result in served)
        return len(served) / (ended_s - min(result.arrival_s for result in served))

    @property
    def forward_size(self) -> float:
        """Return the mean tokens of a step, prompts and decodes together. Needs a step."""
        return sum(each.num_tokens for each in self.steps) / sum(each.num for each in self.steps)

    @property
    def forward_tokens_per_s(self) -> float:
        """Return the tokens that an instance takes through the model per second, in the mean of the
        instances. Needs a step."""
        return sum(each.num_tokens for each in self.steps) / len(self.steps) / self.steps_s

    @property
    def preemptions_per_request(self) -> float:
        """Return how often a request gave up its cache, in the mean. Needs a request."""
        return sum(each.num_preempted for each in self.steps) / self.requests

    @property
    def share_without_end(self) -> float:
        """Return the share of the steps in which no response ended. Needs a step."""
        return sum(each.num_without_end for each in self.steps) / sum(
            each.num for each in self.steps
        )

    @property
    def by_size(self) -> tuple[float, ...]:
        """Return the attainment of each quarter of the requests, the one with the fewest tokens
        first (prompt and output); empty where there are fewer results than quarters."""
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
"""An SLO rule tells whether a request that has ended did so within its targets. A rule with the
attribute ``ignores_ttft`` set to True does not look at the first token."""


def as_client(record: SimRequest) -> bool:
    """Return whether a request met all targets as they are stated."""
    return _is_met(record, record.first_s, record.request.slo.num_slow(record.gaps_s))


def as_ecoserve(record: SimRequest) -> bool:
    """Return whether a request met its targets as EcoServe counts: the wait for the switch to
    decoding belongs to TTFT, and TPOT counts from there."""
    return _is_met(record, max(record.first_s, record.decoding_s))


def as_aptserve(record: SimRequest) -> bool:
    """Return whether a request met its TTFT, and the 99th percentile of the gaps between its tokens
    met the target (Apt-Serve, section 6.1)."""
    slo = record.request.slo
    is_steady = slo.is_steady(slo.num_slow(record.gaps_s), record.num_emitted - 1)
    return record.first_s <= record.request.deadline_s and is_steady


def _is_met(record: SimRequest, first_s: float, num_slow: int = 0) -> bool:
    request, num_after = record.request, record.num_emitted - 1
    ttft_s, after_s = first_s - request.arrival_s, record.last_s - first_s
    return request.slo.is_met(ttft_s, after_s, num_after, num_slow)
