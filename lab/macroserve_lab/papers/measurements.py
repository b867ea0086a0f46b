"""Measurements of experiments: frozen values that return measured figures by key."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from statistics import mean
from typing import Protocol

from macroserve.sim.results import AT_END, WHEN_DECIDED, RequestResult, RunResult, StopRule
from macroserve_lab.experiment import WARM_UP_S, Experiment
from macroserve_lab.goodput import PRECISION, goodput

Values = Mapping[str, float]
"""Measured values, by their keys."""

LOOKED_AT = (
    "attainment of the quarter with the fewest tokens",
    "attainment of the next quarter",
    "attainment of the quarter after it",
    "attainment of the quarter with the most tokens",
    "longest wait in s",
)

KEPT_UP, FASTER = 0.75, 1.25
"""Share of the arriving requests below which queues grow without end, and factor to the next
rate."""

PERCENTS = (1, *range(5, 100, 5), 99)


def point(key: str, of: str) -> str:
    """Return the key of one value of a measurement; of its only value where ``of`` is empty."""
    return f"{key}, {of}" if of else key


class Measurement(Protocol):
    """A frozen dataclass, whose repr determines its values."""

    @property
    def key(self) -> str: ...

    def measure(self, seed: int) -> Values: ...


@dataclass(frozen=True, slots=True)
class Goodput:
    """The highest rate, in requests per second, at which ``level`` is attained over
    ``duration_s``."""

    key: str
    experiment: Experiment
    level: float
    duration_s: float
    lowest: float
    highest: float = 400.0

    def measure(self, seed: int) -> Values:
        rate = self.experiment.goodput(self.level, self.duration_s, self.lowest, self.highest, seed)
        return {self.key: rate}

    def served(self, held: Values, seed: int, stop: StopRule = WHEN_DECIDED) -> RunResult:
        """Return a run at the rate that ``measure`` has found, or at the lowest one where none is
        held."""
        rate = held[self.key] or self.lowest
        return self.experiment.serve(rate, self.duration_s, seed=seed, stop=stop)


@dataclass(frozen=True, slots=True)
class CloserLook:
    """A goodput, and at that rate the values of ``LOOKED_AT``."""

    goodput: Goodput

    @property
    def key(self) -> str:
        return self.goodput.key

    def measure(self, seed: int) -> Values:
        held = self.goodput.measure(seed)
        outcome = self.goodput.served(held, seed, AT_END)
        found = (*outcome.by_size, outcome.longest_wait_s)
        return {
            **held,
            **{point(self.key, of): value for of, value in zip(LOOKED_AT, found, strict=True)},
        }


@dataclass(frozen=True, slots=True)
class Attainment:
    """The share of requests within the targets at a rate."""

    key: str
    experiment: Experiment
    rate: float
    duration_s: float

    def measure(self, seed: int) -> Values:
        outcome = self.experiment.serve(self.rate, self.duration_s, seed=seed)
        return {self.key: outcome.attainment}


@dataclass(frozen=True, slots=True)
class RateAtLatency:
    """The highest rate, in requests per second, at which the mean normalized latency of all
    requests, late or not, stays within a limit."""

    key: str
    experiment: Experiment
    limit_s: float
    duration_s: float
    lowest: float
    highest: float = 400.0

    def measure(self, seed: int) -> Values:
        def holds(rate: float) -> bool:
            outcome = self.experiment.serve(
                rate,
                self.duration_s,
                seed=seed,
                stop=StopRule(to_the_end=True, limit_s=self.limit_s),
            )
            return Metric.NORMALISED_LATENCY.of(outcome) <= self.limit_s

        # Latency does rise steadily.
        return {self.key: goodput(holds, self.lowest, self.highest, patience=1)}


Search = Goodput | RateAtLatency


@dataclass(frozen=True, slots=True)
class BestOf:
    """The highest rate that any of the searches finds.

    The first search is carried out whole. Of each other search only so much is carried out as shows
    whether it finds more than those before it; if not, its own key has the value 0.
    """

    key: str
    searches: tuple[Search, ...]

    @property
    def lowest(self) -> float:
        return self.searches[0].lowest

    def measure(self, seed: int) -> Values:
        best, found = 0.0, {}
        for search in self.searches:
            least = max(search.lowest, best * (1 + PRECISION))
            found |= replace(search, lowest=least).measure(seed)
            best = max(best, found[search.key])
        return {**found, self.key: best}

    def winner(self, values: Values) -> Search:
        return max(self.searches, key=lambda search: values[search.key])


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The highest rate, in requests per second, at which the devices finish requests.

    The rate is raised until queues grow without end; far beyond, fewer requests would end again, as
    those that do not fit are begun in vain.

    experiment: an experiment with targets that every request meets.
    duration_s: duration of the arrivals; the requests that end in its second half count.
    lowest: the rate to begin at, requests per second.
    """

    key: str
    experiment: Experiment
    duration_s: float
    lowest: float

    def measure(self, seed: int) -> Values:
        rate, most = self.lowest, 0.0
        while (ended := self._ended_per_s(rate, seed)) > KEPT_UP * rate:
            rate, most = rate * FASTER, max(most, ended)
        return {self.key: max(most, ended)}

    def _ended_per_s(self, rate: float, seed: int) -> float:
        outcome = self.experiment.serve(rate, self.duration_s, seed=seed, stop=AT_END)
        half_s = self.duration_s / 2
        start_s = WARM_UP_S + half_s
        num_ended = sum(
            start_s <= result.arrival_s + result.completion_s < start_s + half_s
            for result in outcome.results
        )
        return num_ended / half_s


@dataclass(frozen=True, slots=True)
class FewestInstances:
    """The smallest number of instances that holds another goodput.

    goodput: the other goodput.
    experiments: experiments with 1, 2, ... instances. Where none of them holds the goodput, the
        result is one more than all of them.
    """

    key: str
    goodput: Goodput
    experiments: tuple[Experiment, ...]

    def measure(self, seed: int) -> Values:
        other = self.goodput
        held = other.measure(seed)
        rate = max(held[other.key], other.lowest)

        def holds(experiment: Experiment) -> bool:
            outcome = experiment.serve(
                rate, other.duration_s, stop=StopRule(goal=other.level), seed=seed
            )
            return outcome.attainment >= other.level

        return {**held, self.key: 1 + bisect_left(self.experiments, True, key=holds)}


class Metric(StrEnum):
    ATTAINMENT = "attainment"
    NORMALISED_LATENCY = "normalised latency in s"
    COMPLETION = "completion time in s"
    KV_USE = "share of the cache that holds tokens"
    THROUGHPUT = "requests/s"
    LATE_TTFT = "P99 of TTFT in s"
    TPOT = "mean TPOT in s"
    FORWARD_SIZE = "tokens of a step"
    FORWARD_TOKENS = "tokens per second of an instance"
    PREEMPTIONS = "preemptions per request"
    WITHOUT_END = "share of the steps that end no response"

    def of(self, outcome: RunResult) -> float:
        match self:
            case Metric.ATTAINMENT:
                return outcome.attainment
            case Metric.NORMALISED_LATENCY:
                return mean([each.normalized_s for each in outcome.results if not each.refused])
            case Metric.COMPLETION:
                return outcome.completion_s
            case Metric.KV_USE:
                return outcome.kv_use
            case Metric.THROUGHPUT:
                served = [result for result in outcome.results if not result.refused]
                ended_s = max(result.arrival_s + result.completion_s for result in served)
                return len(served) / (ended_s - min(result.arrival_s for result in served))
            case Metric.LATE_TTFT:
                return _percentile(outcome.results, _LATENCIES["TTFT"], 99)
            case Metric.TPOT:
                return mean(map(_LATENCIES["TPOT"], outcome.results))
            case Metric.FORWARD_SIZE:
                num_steps = sum(each.num for each in outcome.steps)
                return sum(each.num_tokens for each in outcome.steps) / num_steps
            case Metric.FORWARD_TOKENS:
                num_tokens = sum(each.num_tokens for each in outcome.steps)
                return num_tokens / len(outcome.steps) / outcome.steps_s
            case Metric.PREEMPTIONS:
                return sum(each.num_preempted for each in outcome.steps) / outcome.requests
            case Metric.WITHOUT_END:
                num_without_end = sum(each.num_without_end for each in outcome.steps)
                return num_without_end / sum(each.num for each in outcome.steps)


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric over the rate, requests per second."""

    key: str
    experiment: Experiment
    rates: Sequence[float]
    duration_s: float
    metric: Metric = Metric.ATTAINMENT

    def measure(self, seed: int) -> Values:
        values: dict[str, float] = {}
        for rate in self.rates:
            outcome = self.experiment.serve(
                rate,
                self.duration_s,
                seed=seed,
                stop=WHEN_DECIDED if self.metric is Metric.ATTAINMENT else AT_END,
            )
            values[self.point(rate)] = self.metric.of(outcome)
        return values

    def line(self, values: Values) -> list[tuple[float, float]]:
        return [(rate, values[self.point(rate)]) for rate in self.rates]

    def point(self, rate: float) -> str:
        return f"{self.key} at {rate:g} requests/s"


@dataclass(frozen=True, slots=True)
class Served:
    """Several metrics of one run, whose rate is in requests per second."""

    key: str
    experiment: Experiment
    rate: float
    duration_s: float
    metrics: tuple[Metric, ...]

    def measure(self, seed: int) -> Values:
        outcome = self.experiment.serve(self.rate, self.duration_s, seed=seed, stop=AT_END)
        return {point(self.key, metric): metric.of(outcome) for metric in self.metrics}


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The distribution of latencies at a rate, and the attainment there."""

    key: str
    experiment: Experiment
    rate: float
    duration_s: float

    def measure(self, seed: int) -> Values:
        outcome = self.experiment.serve(self.rate, self.duration_s, seed=seed, stop=AT_END)
        found = {
            point(self.key, f"{name} p{percent}"): _percentile(outcome.results, of, percent)
            for name, of in _LATENCIES.items()
            for percent in PERCENTS
        }
        return {**found, point(self.key, "attainment"): outcome.attainment}

    def line(self, latency: str, values: Values) -> list[tuple[float, float]]:
        """Return the points of a distribution: seconds, and the share of the requests below them.

        latency: 'TTFT', 'TPOT' or 'P99 TBT', the 99th percentile of a request's gaps.
        """
        return [
            (values[point(self.key, f"{latency} p{percent}")], percent / 100)
            for percent in PERCENTS
        ]


_LATENCIES: Mapping[str, Callable[[RequestResult], float]] = {
    "TTFT": lambda result: result.wait_s,
    "TPOT": lambda result: result.tpot_s,
    "P99 TBT": lambda result: result.tbt_s,
}


def _percentile(
    results: Sequence[RequestResult], of: Callable[[RequestResult], float], percent: int
) -> float:
    ordered = sorted(map(of, results))
    return ordered[ceil(percent / 100 * len(ordered)) - 1]
