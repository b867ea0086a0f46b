"""Who was served within the targets, as a client or as a paper counts."""

from collections.abc import Callable

from macroserve.sim.record import Record

Judge = Callable[[Record], bool]
"""Whether a request that has ended did so within its targets."""


def as_client(record: Record) -> bool:
    """All targets, as they are stated."""
    return _is_met(record, record.first_s, record.request.slo.num_slow(record.gaps_s))


def as_ecoserve(record: Record) -> bool:
    """As EcoServe counts: the wait for the switch to decoding belongs to the time to the first
    token, and the others' time counts from there."""
    return _is_met(record, max(record.first_s, record.decoding_s))


def as_aptserve(record: Record) -> bool:
    """Time to the first token, and the 99th percentile of the gaps between tokens (section 6.1)."""
    slo = record.request.slo
    is_steady = slo.is_steady(slo.num_slow(record.gaps_s), record.num_emitted - 1)
    return record.first_s <= record.request.deadline_s and is_steady


def _is_met(record: Record, first_s: float, num_slow: int = 0) -> bool:
    request, num_after = record.request, record.num_emitted - 1
    ttft_s, after_s = first_s - request.arrival_s, record.last_s - first_s
    return request.slo.is_met(ttft_s, after_s, num_after, num_slow)
