"""Build the traffic to simulate from the load that a deployment reports."""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from macroserve.core.scaling.forecast import Demand, forecast
from macroserve.core.scaling.load import LoadBucket, LoadReport
from macroserve.core.slo_class import SloClass
from macroserve.workload.arrivals import Arrival, Lengths, poisson, scaled

HORIZON_S = 60.0
"""Horizon of the forecast in seconds: about the time that an instance takes to start."""

BUSY_S = 60.0
"""Length of the busiest stretch, and of the expected traffic, in seconds."""

HEADROOM = 1.15
"""Factor on the busiest stretch that the remaining instances must withstand."""

WARM_UP_S = 20.0
"""Seconds of requests before those that count, so that the instances are busy by then."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic is a load whose rate changes every ``stretch_s``."""

    rates: tuple[float, ...]
    """Requests per second, one for each stretch in turn, then again from the first."""
    stretch_s: float
    lengths: Lengths
    """Tokens of prompts and outputs."""
    classes: tuple[str, ...] = ()
    """Names of the SLO classes of the same requests; empty where all are of the default one."""

    @property
    def duration_s(self) -> float:
        return self.stretch_s * len(self.rates)

    @property
    def num_expected(self) -> float:
        """Return the number of requests in one round of all rates."""
        return self.stretch_s * sum(self.rates)

    @property
    def tokens_per_s(self) -> float:
        mean_tokens = sum(map(sum, self.lengths)) / len(self.lengths)
        return mean_tokens * self.num_expected / self.duration_s

    def arrivals(
        self,
        share: float,
        num_rounds: int,
        random: Random,
        slo_classes: Iterable[SloClass] = (),
    ) -> tuple[list[Arrival], int]:
        """Draw arrivals of a share of the traffic.

        slo_classes: the classes that requests may have; all others are of the default one.

        Return them and how many of the first do not count.
        """
        mean_rate = share * sum(self.rates) / len(self.rates)
        warm_up = poisson([mean_rate], WARM_UP_S, self.lengths, random)
        rates = [share * rate for rate in self.rates] * num_rounds
        counted = [
            arrival._replace(at_s=WARM_UP_S + arrival.at_s)
            for arrival in poisson(rates, self.stretch_s, self.lengths, random)
        ]
        drawn = self._in_classes([*warm_up, *counted], random, slo_classes)
        return drawn, len(warm_up)

    def _in_classes(
        self, arrivals: list[Arrival], random: Random, slo_classes: Iterable[SloClass]
    ) -> list[Arrival]:
        """Return the arrivals, each with the class of a request of its lengths."""
        known = {each.name: each for each in slo_classes}
        if not known.keys() & set(self.classes):
            return arrivals
        by_lengths: dict[tuple[int, int], list[SloClass | None]] = {}
        for lengths, name in zip(self.lengths, self.classes, strict=True):
            by_lengths.setdefault(lengths, []).append(known.get(name))
        return [
            arrival._replace(
                slo_class=random.choice(
                    by_lengths[arrival.num_prompt_tokens, arrival.num_output_tokens]
                )
            )
            for arrival in arrivals
        ]


def expected(load: LoadReport, num_waiting: int) -> Traffic | None:
    """Return the forecast traffic with the requests that wait now, or None without requests."""
    demand = forecast(load, HORIZON_S)
    if demand is None or not demand.requests:
        return None
    rate = demand.requests + num_waiting / BUSY_S
    return Traffic((rate,), BUSY_S, _lengths(load, demand), _classes(load))


def busiest(load: LoadReport, num_waiting: int, within_s: float) -> Traffic | None:
    """Return the busiest stretch of the last ``within_s``, by tokens, with some headroom and the
    requests that wait now, or None without requests. At least one stretch is examined."""
    num = max(1, round(BUSY_S / load.bucket_s))
    buckets = load.buckets[: max(num, round(within_s / load.bucket_s))]
    stretches = [buckets[i : i + num] for i in range(max(1, len(buckets) - num + 1))]
    busy = max(stretches, key=_tokens)[::-1]
    demand = _demand(busy, load.bucket_s)
    if not demand.requests:
        return None
    waiting = num_waiting / (load.bucket_s * len(busy))
    rates = tuple(waiting + HEADROOM * bucket.requests / load.bucket_s for bucket in busy)
    return Traffic(rates, load.bucket_s, _lengths(load, demand), _classes(load))


def _tokens(buckets: Iterable[LoadBucket]) -> int:
    return sum(bucket.prompt_tokens + bucket.output_tokens for bucket in buckets)


def _demand(buckets: tuple[LoadBucket, ...], bucket_s: float) -> Demand:
    span_s = bucket_s * max(1, len(buckets))
    return Demand(
        sum(bucket.requests for bucket in buckets) / span_s,
        sum(bucket.prompt_tokens for bucket in buckets) / span_s,
        sum(bucket.output_tokens for bucket in buckets) / span_s,
    )


def _classes(load: LoadReport) -> tuple[str, ...]:
    return load.classes if len(load.classes) == len(load.lengths) else ()


def _lengths(load: LoadReport, demand: Demand) -> Lengths:
    """Return the reported sample of lengths, scaled to the tokens of the demand."""
    sample = load.lengths or ((1, 1),)
    return scaled(
        sample, demand.prompt_tokens / demand.requests, demand.output_tokens / demand.requests
    )
