"""Traffic to simulate, derived from the reported load of a deployment."""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from macroserve.core.scaling.autoscale import START_S
from macroserve.core.scaling.forecast import ExpectedLoad, forecast, growth
from macroserve.core.scaling.load import LoadBucket, LoadReport
from macroserve.core.slo_class import SloClass
from macroserve.workload.arrivals import Arrival, Lengths, poisson, scaled

BUSY_S = 60.0
"""Length of past and expected traffic, seconds."""

HEADROOM = 1.15
"""Factor on the last minute's load that the remaining instances must withstand."""

WARM_UP_S = 20.0
"""Seconds of requests that keep the instances busy before requests count."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """A load whose rate changes every ``stretch_s``."""

    rates: tuple[float, ...]
    """Requests per second in each stretch, repeated."""
    stretch_s: float
    lengths: Lengths
    classes: tuple[str, ...] = ()
    """SLO classes of the requests in ``lengths``; empty if all are in the default class."""

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
        """Draw arrivals of a share of the traffic; return them and how many of the first do not
        count. Requests of classes not in ``slo_classes`` get the default class."""
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


def expected(load: LoadReport, num_waiting: int, start_s: float = START_S) -> Traffic | None:
    """Return the traffic forecast for the time when an instance added now serves, including waiting
    requests; None without requests.

    start_s: start time of an instance, seconds. A queue is spread over this time and a minute.
    """
    return _forecast(load, start_s, num_waiting / (start_s + BUSY_S))


def surge(load: LoadReport, start_s: float) -> Traffic | None:
    """Return the traffic forecast if the load grows during a start as much as it lately has; None
    without requests."""
    return _forecast(load, start_s, growth(load, start_s))


def _forecast(load: LoadReport, horizon_s: float, more_per_s: float) -> Traffic | None:
    demand = forecast(load, horizon_s)
    if demand is None or not demand.requests:
        return None
    rate = demand.requests + more_per_s
    return Traffic((rate,), BUSY_S, _lengths(load, demand), _classes(load))


def last_minute(load: LoadReport, num_waiting: int) -> Traffic | None:
    """Return the last minute's traffic with headroom and waiting requests; None without
    requests."""
    buckets = load.buckets[: max(1, round(BUSY_S / load.bucket_s))][::-1]
    demand = _demand(buckets, load.bucket_s)
    if not demand.requests:
        return None
    waiting = num_waiting / (load.bucket_s * len(buckets))
    rates = tuple(waiting + HEADROOM * bucket.requests / load.bucket_s for bucket in buckets)
    return Traffic(rates, load.bucket_s, _lengths(load, demand), _classes(load))


def _demand(buckets: tuple[LoadBucket, ...], bucket_s: float) -> ExpectedLoad:
    span_s = bucket_s * max(1, len(buckets))
    return ExpectedLoad(
        sum(bucket.requests for bucket in buckets) / span_s,
        sum(bucket.prompt_tokens for bucket in buckets) / span_s,
        sum(bucket.output_tokens for bucket in buckets) / span_s,
    )


def _classes(load: LoadReport) -> tuple[str, ...]:
    return load.classes if len(load.classes) == len(load.lengths) else ()


def _lengths(load: LoadReport, demand: ExpectedLoad) -> Lengths:
    """Return the reported sample of lengths, scaled to the tokens of the demand."""
    sample = load.lengths or ((1, 1),)
    return scaled(
        sample, demand.prompt_tokens / demand.requests, demand.output_tokens / demand.requests
    )
