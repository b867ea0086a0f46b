"""The traffic to simulate, made from what a deployment reports of its own."""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from macroserve.core.scaling.forecast import Demand, forecast
from macroserve.core.scaling.load import LoadBucket, LoadReport
from macroserve.workload.arrivals import Arrival, Lengths, poisson, scaled

HORIZON_S = 60.0
"""How far ahead to look: about what an instance takes to start."""

BUSY_S = 60.0
"""So long is the busiest stretch of what came lately, and so long lasts what is expected."""

HEADROOM = 1.15
"""Survivors must stand so much more than the busiest stretch."""

WARM_UP_S = 20.0
"""Requests of so long come before those that count, so that the instances are at work by then."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """rates: requests per second, one for each ``stretch_s`` in turn, then again from the first.
    lengths: of prompts and outputs, in tokens.
    """

    rates: tuple[float, ...]
    stretch_s: float
    lengths: Lengths

    @property
    def duration_s(self) -> float:
        return self.stretch_s * len(self.rates)

    @property
    def num_expected(self) -> float:
        """Requests of one round."""
        return self.stretch_s * sum(self.rates)

    @property
    def tokens_per_s(self) -> float:
        mean_tokens = sum(map(sum, self.lengths)) / len(self.lengths)
        return mean_tokens * self.num_expected / self.duration_s

    def arrivals(self, share: float, num_rounds: int, random: Random) -> tuple[list[Arrival], int]:
        """What a share of it may look like, and how many of the first arrivals do not count."""
        mean_rate = share * sum(self.rates) / len(self.rates)
        warm_up = poisson([mean_rate], WARM_UP_S, self.lengths, random)
        rates = [share * rate for rate in self.rates] * num_rounds
        counted = [
            arrival._replace(at_s=WARM_UP_S + arrival.at_s)
            for arrival in poisson(rates, self.stretch_s, self.lengths, random)
        ]
        return [*warm_up, *counted], len(warm_up)


def expected(load: LoadReport, num_waiting: int) -> Traffic | None:
    """What is forecast, and all that waits now, for that is to be served as well. None where
    nothing was asked for."""
    demand = forecast(load, HORIZON_S)
    if demand is None or not demand.requests:
        return None
    rate = demand.requests + num_waiting / BUSY_S
    return Traffic((rate,), BUSY_S, _lengths(load, demand))


def busiest(load: LoadReport, num_waiting: int, within_s: float) -> Traffic | None:
    """The busiest stretch of the last ``within_s``, by tokens, and some more, with all that waits
    now. At least one stretch is looked at. None where nothing was asked for."""
    num = max(1, round(BUSY_S / load.bucket_s))
    buckets = load.buckets[: max(num, round(within_s / load.bucket_s))]
    stretches = [buckets[i : i + num] for i in range(max(1, len(buckets) - num + 1))]
    busy = max(stretches, key=_tokens)[::-1]
    demand = _demand(busy, load.bucket_s)
    if not demand.requests:
        return None
    waiting = num_waiting / (load.bucket_s * len(busy))
    rates = tuple(waiting + HEADROOM * bucket.requests / load.bucket_s for bucket in busy)
    return Traffic(rates, load.bucket_s, _lengths(load, demand))


def _tokens(buckets: Iterable[LoadBucket]) -> int:
    return sum(bucket.prompt_tokens + bucket.output_tokens for bucket in buckets)


def _demand(buckets: tuple[LoadBucket, ...], bucket_s: float) -> Demand:
    span_s = bucket_s * max(1, len(buckets))
    return Demand(
        sum(bucket.requests for bucket in buckets) / span_s,
        sum(bucket.prompt_tokens for bucket in buckets) / span_s,
        sum(bucket.output_tokens for bucket in buckets) / span_s,
    )


def _lengths(load: LoadReport, demand: Demand) -> Lengths:
    """The sample that was reported, stretched to the tokens of just that demand."""
    sample = load.lengths or ((1, 1),)
    return scaled(
        sample, demand.prompt_tokens / demand.requests, demand.output_tokens / demand.requests
    )
