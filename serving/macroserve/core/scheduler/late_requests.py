"""Requests past their TTFT target under triage: their share of the prefill, and the bound on their
wait."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many

from macroserve.core.scheduler.iteration import IterationInputs, Pick
from macroserve.core.scheduler.sequence import Sequence

LATE_SHARE = 0.1
"""Share of prefilled tokens reserved for late requests while any wait."""

MAX_LATE_TTFTS = 8.0
"""Longest wait of a late request for its first token, in TTFT targets."""


def credit_late_requests(inputs: IterationInputs, picks: Many[Pick]) -> None:
    """Credit late requests, if any, with a share of the picked tokens, so that each is eventually
    served."""
    now, waiting = inputs.now, inputs.waiting
    begun = inputs.running.prefilling.values()
    if not (waiting.num_due_before(now) or any(seq.is_late(now) for seq in begun)):
        waiting.promised_tokens = 0.0
        return
    num_tokens = sum([pick.num_tokens for pick in picks])
    num_late_tokens = sum([pick.num_tokens for pick in picks if pick.seq.is_late(now)])
    earned = LATE_SHARE * num_tokens - num_late_tokens
    waiting.promised_tokens = max(0.0, waiting.promised_tokens + earned)


def late_s_per_token(s_per_token: float, arriving_tokens_per_s: float) -> float:
    """Return the time in which one token of late requests is prefilled, seconds.

    s_per_token: time per prefilled token of any request.
    arriving_tokens_per_s: recent rate of prompt tokens, which go first.
    """
    return s_per_token / max(LATE_SHARE, 1 - s_per_token * arriving_tokens_per_s)


def beyond_bound(
    late: Iterable[Sequence],
    now: float,
    num_tokens_ahead: int,
    s_per_token: Callable[[float], float],
    max_wait_s: float | None,
) -> list[Sequence]:
    """Return the overdue requests whose first token would come too late, counted from when they
    came to this instance.

    late: late requests in their order.
    num_tokens_ahead: tokens of late requests whose prefill has begun.
    s_per_token: time in which one token of late requests is prefilled, seconds, by a TTFT target:
    arrivals within it go first.
    max_wait_s: the bound, seconds; None for ``MAX_LATE_TTFTS`` targets of each request.
    """
    leaving: list[Sequence] = []
    for seq in late:
        num_tokens = num_tokens_ahead + seq.num_to_prefill
        ttft_s = seq.request.slo.ttft_s
        latest_s = seq.queued_s + (max_wait_s or MAX_LATE_TTFTS * ttft_s)
        if seq.overdue_from_s <= now and now + num_tokens * s_per_token(ttft_s) > latest_s:
            leaving.append(seq)
        else:
            num_tokens_ahead = num_tokens
    return leaving
