"""Predicted waits in queues, and when a refused client should retry."""

from collections.abc import Iterable

from macroserve.core.status import InstanceView, Pool

NO_INSTANCE_RETRY_S = 10.0
"""Seconds until a retry while no instance takes requests: about half a small model's start time."""
MAX_RETRY_S = 300.0
"""Longest time until a retry, seconds: by then instances may have been added."""

LeastWaits = tuple[tuple[float, float], ...]
"""Waits by TTFT target: pairs of a target and a wait, seconds, sorted by target from 0. The last
entry with a target no longer than the request's applies. Empty without an instance."""


def least_waits(views: Iterable[InstanceView]) -> LeastWaits:
    """Return the predicted time of prefills ahead of a new request, minimum over instances."""
    views = tuple(views)
    if not views:
        return ()
    targets_s = {0.0, *(ttft_s for view in views for ttft_s, _ in view.status.yielding)}
    return tuple(
        (ttft_s, min([view.prefill_ahead_s(ttft_s) for view in views]))
        for ttft_s in sorted(targets_s)
    )


def least_wait_s(waits: LeastWaits, ttft_s: float) -> float | None:
    """Return the wait under a TTFT target of ``ttft_s``, seconds; None without an instance."""
    within = [wait_s for target_s, wait_s in waits if target_s <= ttft_s]
    return within[-1] if within else None


def is_late(waits: LeastWaits, ttft_s: float) -> bool:
    """Return whether a new request would wait longer than its TTFT target; False without an
    instance."""
    wait_s = least_wait_s(waits, ttft_s)
    return wait_s is not None and wait_s > ttft_s


def share_ahead(waits: LeastWaits, ttft_s: float) -> float:
    """Return the share of waiting prefills ahead of a new request with this TTFT target."""
    if not waits or not (longest_s := waits[-1][1]):
        return 1.0
    return (least_wait_s(waits, ttft_s) or 0.0) / longest_s


def queue_wait_s(view: InstanceView) -> float:
    """Return the predicted seconds until all requests that wait at the instance have begun.

    This is when a new request begins in FCFS order; in deadline order it may begin earlier.
    """
    status = view.status
    if not status.prefill_s_per_token:
        return 0.0
    num_tokens = status.waiting_tokens + view.in_flight_prefill_s / status.prefill_s_per_token
    return num_tokens * status.queue_s_per_token


def cell_queue_wait_s(views: Iterable[InstanceView]) -> float | None:
    """Return the larger of both pools' shortest waits, seconds; None if no instance takes requests.

    The HP pool counts because LP instances hand it late requests: under overload the queue is
    there.
    """
    waits: dict[Pool, float] = {}
    for view in views:
        if not view.status.draining:
            wait_s = queue_wait_s(view)
            waits[view.pool] = min(wait_s, waits.get(view.pool, wait_s))
    return max(waits.values(), default=None)


def retry_after_s(wait_s: float | None, bound_s: float, chance: float) -> int:
    """Return the whole seconds, at least 1, after which a refused client should retry.

    wait_s: wait of the queue, which must fall to ``bound_s``.
    chance: random number in [0, 1) that spreads the clients of a burst by up to 50 %.
    """
    excess_s = NO_INSTANCE_RETRY_S if wait_s is None else wait_s - bound_s
    return round(min(max(excess_s, 1.0), MAX_RETRY_S) * (1 + chance / 2))
