"""The papers' rules of when a request meets its targets (``sim.results.SloRule``)."""

from macroserve.sim.device import SimRequest
from macroserve.sim.results import is_met


def as_ecoserve(record: SimRequest) -> bool:
    """Return whether a request met its targets by EcoServe's definition: TTFT includes the wait for
    the switch to decoding, from which TPOT counts."""
    return is_met(record, max(record.first_s, record.decoding_s))


def as_aptserve(record: SimRequest) -> bool:
    """Return whether a request's TTFT and the 99th percentile of its gaps between tokens met their
    targets (Apt-Serve, section 6.1)."""
    slo = record.request.slo
    is_steady = slo.is_steady(slo.num_slow(record.gaps_s), record.num_emitted - 1)
    return record.first_s <= record.request.deadline_s and is_steady
