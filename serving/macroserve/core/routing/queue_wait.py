"""Predictions from the queue of when a request begins its prefill and a refused client retries."""

from collections.abc import Iterable

from macroserve.core.status import InstanceView, Pool

NO_INSTANCE_RETRY_S = 10.0
"""Seconds until a retry while no instance takes requests: about half the start time of a small
model."""
MAX_RETRY_S = 300.0
"""Longest time until a retry, seconds: by then instances may have been added."""

LeastWaits = tuple[tuple[float, float], ...]
"""Waits by TTFT target: pairs of a target and a wait, seconds, by target from 0 on. The last entry
with a target no longer than the request's counts. Empty without an instance."""


def least_waits(views: Iterable[InstanceView]) -> LeastWaits:
    """Return the predicted times of the prefills before a request that comes now, at the instance
    where they are least."""
    views = tuple(views)
    if not views:
        return ()
    targets_s = {0.0, *(ttft_s for view in views for ttft_s, _ in view.status.yielding)}
    return tuple(
        (ttft_s, min([view.prefill_ahead_s(ttft_s) for view in views]))
        for ttft_s in sorted(targets_s)
    )


def least_wait_s(waits: LeastWaits, ttft_s: float) -> float | None:
    """Return the wait of a request with a TTFT target of ``ttft_s``, seconds; None without an
    instance."""
    within = [wait_s for target_s, wait_s in waits if target_s <= ttft_s]
    return within[-1] if within else None


def is_late(waits: LeastWaits, ttft_s: float) -> bool:
    """Return whether a request that comes now would wait longer than its TTFT target, seconds;
    False without an instance."""
    wait_s = least_wait_s(waits, ttft_s)
    return wait_s is not None and wait_s > ttft_s


def share_ahead(waits: LeastWaits, ttft_s: float) -> float:
    """Return the share of the waiting prefills that go before a request with a TTFT target of
    ``ttft_s``, seconds."""
    if not waits or not (longest_s := waits[-1][1]):
        return 1.0
    return (least_wait_s(waits, ttft_s) or 0.0) / longest_s


def queue_wait_s(view: InstanceView) -> float:
    """Return the predicted seconds until all requests that wait at the instance have begun.

    Under first come, first served a new request begins then. Under deadline order it may begin
    earlier, at the expense of the requests that wait.
    """
    status = view.status
    if not status.prefill_s_per_token:
        return 0.0
    num_tokens = status.waiting_tokens + view.in_flight_prefill_s / status.prefill_s_per_token
    return num_tokens * status.queue_s_per_token


def cell_queue_wait_s(views: Iterable[InstanceView]) -> float | None:
    """Return the least wait at an instance of the pool where that is longest, seconds; None without
    an instance that takes requests.

    Both pools count: an LP instance hands requests that would be late to the HP pool, so that under
    overload the queue is there.
    """
    waits: dict[Pool, float] = {}
    for view in views:
        if not view.status.draining:
            wait_s = queue_wait_s(view)
            waits[view.pool] = min(wait_s, waits.get(view.pool, wait_s))
    return max(waits.values(), default=None)


def retry_after_s(wait_s: float | None, bound_s: float, chance: float) -> int:
    """Return the whole seconds, at least 1, after which a refused client should retry.

    wait_s: wait of the queue, which has to fall to ``bound_s``.
    chance: random number in [0, 1) that spreads the clients of one burst over half as much again.
    """
    excess_s = NO_INSTANCE_RETRY_S if wait_s is None else wait_s - bound_s
    return round(min(max(excess_s, 1.0), MAX_RETRY_S) * (1 + chance / 2))
