"""Prefill or decode: the phase table of an instance."""

from macroserve.core.views import Phase

OVERDUE_TTFTS = 2.0
"""A request that waited this many TTFT targets is prefilled whether slack pays for it or not."""


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
