"""Results of a run, computed from its records."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from macroserve.bench.serve.record import Failure, RequestRecord
from macroserve.core.request import DEFAULT_CLASS, Slo


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of a latency, seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> Self | None:
        """Return percentiles with linear interpolation; None without values."""
        if len(values) == 0:
            return None
        p50, p90, p95, p99 = np.percentile(values, (50, 90, 95, 99)).tolist()
        return cls(float(np.mean(values)), p50, p90, p95, p99, float(np.max(values)))


@dataclass(frozen=True, slots=True)
class FailureCount:
    """Number of requests that failed for the same reason."""

    failure: Failure
    http_status: int | None
    count: int
    detail: str
    """Error of the first of them."""


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """Results of one SLO class; latencies are those of its successful requests."""

    name: str
    slo: Slo
    num_requests: int
    attainment: float
    ttft: Distribution | None
    tpot: Distribution | None

    @classmethod
    def of(cls, name: str, slo: Slo, records: Sequence[RequestRecord]) -> Self:
        """Return the results of at least one record."""
        succeeded = [r for r in records if r.failure is None]
        return cls(
            name,
            slo,
            len(records),
            sum(r.meets(slo) for r in records) / len(records),
            Distribution.of(_known(r.ttft_s for r in succeeded)),
            Distribution.of(_known(r.tpot_s for r in succeeded)),
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """Results of one run. Latencies are those of the successful requests; rates are per second."""

    num_sent: int
    num_succeeded: int
    num_failed: int
    num_interrupted: int
    num_short: int
    """Successful requests with fewer tokens than requested."""
    num_unsent: int
    """Turns not sent because their conversation ended early."""
    failures: tuple[FailureCount, ...]
    elapsed_s: float
    offered_rate: float
    """Planned requests per second up to the last arrival sent."""
    request_throughput: float
    prompt_token_throughput: float
    output_token_throughput: float
    cached_share: float | None
    """Share of prompt tokens found in a prefix cache; None if the endpoint does not report it."""
    ttft: Distribution | None
    tpot: Distribution | None
    tbt: Distribution | None
    e2e: Distribution | None
    attainment: float | None
    """Share of requests within all targets, or None. Failed ones count, interrupted ones do not."""
    ttft_attainment: float | None
    tpot_attainment: float | None
    tbt_attainment: float | None
    goodput: float
    """Requests per second within all targets."""
    queue_growth: float
    """See ``queue_growth``."""
    send_lag: Distribution | None
    """The client's own delays."""
    classes: tuple[ClassSummary, ...] = ()
    """Results by SLO class, sorted by name; empty if no request has one."""


def queue_growth(records: Sequence[RequestRecord]) -> float:
    """Return by how much the queue grows, per request that arrives.

    The queue is the requests without a first token. Compared are its means over the third and the
    last quarter of the time of the arrivals. Where it grows, a longer run would attain less.
    """
    sent_s = np.array([r.sent_s for r in records])
    first_s = [r.ended_s if r.ttft_s is None else r.sent_s + r.ttft_s for r in records]
    half_s, three_quarters_s, end_s = (share * sent_s.max(initial=0.0) for share in (0.5, 0.75, 1))

    def mean_length(from_s: float, to_s: float) -> float:
        waited_s = np.clip(first_s, from_s, to_s) - np.clip(sent_s, from_s, to_s)
        return float(waited_s.sum()) / (to_s - from_s)

    if not end_s:
        return 0.0
    growth = mean_length(three_quarters_s, end_s) - mean_length(half_s, three_quarters_s)
    return growth / (np.count_nonzero(sent_s >= half_s) / 2)


def summarize(records: Sequence[RequestRecord], slo: Slo) -> Summary:
    """Return the results of a run from its records, in any order."""
    counted = [r for r in records if r.failure is not Failure.INTERRUPTED]
    succeeded = [r for r in counted if r.failure is None]
    elapsed_s = max((r.ended_s for r in records), default=0.0)
    last_arrival_s = max((r.scheduled_s for r in records), default=0.0)
    num_attained = sum(r.meets(slo) for r in counted)
    return Summary(
        num_sent=len(records),
        num_succeeded=len(succeeded),
        num_failed=len(counted) - len(succeeded),
        num_interrupted=len(records) - len(counted),
        num_short=sum(r.num_tokens < r.num_planned_tokens for r in succeeded),
        num_unsent=sum(r.num_unsent for r in records),
        failures=_failures(counted),
        elapsed_s=elapsed_s,
        offered_rate=_ratio(len(records), last_arrival_s),
        request_throughput=_ratio(len(succeeded), elapsed_s),
        prompt_token_throughput=_ratio(sum(r.num_prompt_tokens for r in succeeded), elapsed_s),
        output_token_throughput=_ratio(sum(r.num_tokens for r in succeeded), elapsed_s),
        cached_share=_cached_share(succeeded),
        ttft=Distribution.of(_known(r.ttft_s for r in succeeded)),
        tpot=Distribution.of(_known(r.tpot_s for r in succeeded)),
        tbt=Distribution.of(np.concatenate([np.empty(0), *(r.gaps_s for r in succeeded)])),
        e2e=Distribution.of(_known(r.e2e_s for r in succeeded)),
        attainment=_share(num_attained, counted),
        ttft_attainment=_share(sum(r.meets_ttft(slo) for r in counted), counted),
        tpot_attainment=_share(sum(r.meets_tpot(slo) for r in counted), counted),
        tbt_attainment=_share(sum(r.meets_tbt(slo) for r in counted), counted),
        goodput=_ratio(num_attained, elapsed_s),
        queue_growth=queue_growth(counted),
        send_lag=Distribution.of([r.send_lag_s for r in records]),
        classes=_classes(counted, slo),
    )


def _classes(counted: Sequence[RequestRecord], slo: Slo) -> tuple[ClassSummary, ...]:
    of_class: dict[str, list[RequestRecord]] = {}
    targets = {DEFAULT_CLASS: slo}
    for record in counted:
        name = DEFAULT_CLASS
        if record.slo_class:
            name = record.slo_class.name
            targets[name] = record.slo_class.slo
        of_class.setdefault(name, []).append(record)
    if of_class.keys() <= {DEFAULT_CLASS}:
        return ()
    return tuple(ClassSummary.of(name, targets[name], of_class[name]) for name in sorted(of_class))


def _cached_share(succeeded: Sequence[RequestRecord]) -> float | None:
    if all(r.num_cached_tokens is None for r in succeeded):
        return None
    # vLLM omits the field for requests without hits.
    num_cached = sum(r.num_cached_tokens or 0 for r in succeeded)
    return num_cached / sum(r.num_prompt_tokens for r in succeeded)


def _failures(counted: Iterable[RequestRecord]) -> tuple[FailureCount, ...]:
    """Return the failures by reason, the most frequent first."""
    failed = [r for r in counted if r.failure is not None]
    details = {(r.failure, r.http_status): r.detail for r in reversed(failed)}
    counts = Counter((r.failure, r.http_status) for r in failed)
    return tuple(
        FailureCount(failure, status, count, details[failure, status])
        for (failure, status), count in counts.most_common()
        if failure is not None
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _ratio(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _share(count: int, requests: Sequence[RequestRecord]) -> float | None:
    return count / len(requests) if requests else None
