"""Prefill or decode: the phase table of an instance and the slack that pays for prefills."""

from collections.abc import Iterable
from math import ceil, inf

from macroserve.core.instance.sequence import Sequence
from macroserve.core.views import Phase

OVERDUE_TTFTS = 2.0
"""A request that waited this many TTFT targets is prefilled whether slack pays for it or not."""


def saved_tpot_p10_s(sequences: Iterable[Sequence], now: float, step_s: float) -> float:
    """Tenth percentile of the saved TPOT (EcoServe, Algorithm 2), seconds; may be negative.

    The paper takes the mean, behind which old requests hide young ones. Left out are requests
    that miss their TPOT target even if every step from now on takes ``step_s``, the time of a
    decode step: nothing can be saved there. Infinite if none is left.
    """
    saved = [
        saved_s
        for seq in sequences
        if (saved_s := seq.paid_until_s - now) >= 0
        or saved_s + seq.num_remaining * (seq.tpot_s - step_s) >= 0
    ]
    if not saved:
        return inf
    return percentile_10(saved)


def saved_tpot_mean_s(sequences: Iterable[Sequence], now: float) -> float:
    """Mean saved TPOT as EcoServe's Algorithm 2 has it, seconds; infinite if there is none."""
    saved = [seq.paid_until_s - now for seq in sequences]
    return sum(saved) / len(saved) if saved else inf


def percentile_10(values: list[float]) -> float:
    """Nearest-rank tenth percentile of at least one value."""
    return sorted(values)[ceil(0.1 * len(values)) - 1]


def next_phase(
    current: Phase, *, can_prefill: bool, can_decode: bool, paid: bool, overdue: bool, spent: bool
) -> tuple[Phase, str]:
    """The phase of the next batch and why: temporal disaggregation (EcoServe, section 3.2).

    paid: saved TPOT covers a prefill batch. overdue: the oldest prompt waited too long.
    spent: the prefill phase has lasted as long as it may.

    Bounds: an overdue prompt waits for one decode batch at most, and then for those ahead of it;
    a decode waits for one prefill phase at most.
    """
    if not can_prefill:
        return (Phase.DECODE, "nothing to prefill") if can_decode else (Phase.IDLE, "no work")
    if not can_decode:
        return Phase.PREFILL, "nothing to decode"
    if paid and not spent:
        return Phase.PREFILL, "saved TPOT pays for prefills"
    if overdue and current is not Phase.PREFILL:
        return Phase.PREFILL, "a prompt has waited too long"
    return Phase.DECODE, "saved TPOT does not pay for prefills"
