"""How long a request that comes now waits until it begins, and when a refused one comes back."""

from collections.abc import Iterable

from macroserve.core.status import InstanceView, Pool

NO_INSTANCE_RETRY_S = 10.0
"""When to come back while no instance takes requests: about half of what a small model takes to
start."""
MAX_RETRY_S = 300.0
"""However long the queue, instances may have been added by then."""


def queue_wait_s(view: InstanceView) -> float:
    """Predicted time until all that waits at the instance has begun, seconds.

    Under first come, first served that is when a request that comes now begins. Where deadlines
    decide it may begin before, at the expense of those that wait.
    """
    status = view.status
    if not status.prefill_s_per_token:
        return 0.0
    num_tokens = status.waiting_tokens + view.in_flight_prefill_s / status.prefill_s_per_token
    return num_tokens * status.queue_s_per_token


def cell_queue_wait_s(views: Iterable[InstanceView]) -> float | None:
    """The least wait at an instance of the pool where it is longest, seconds; None without an
    instance that takes requests.

    Both pools count: an LP instance hands requests that would be late to the HP pool, so that
    under overload the queue is there.
    """
    waits: dict[Pool, float] = {}
    for view in views:
        if not view.status.draining:
            wait_s = queue_wait_s(view)
            waits[view.pool] = min(wait_s, waits.get(view.pool, wait_s))
    return max(waits.values(), default=None)


def retry_after_s(wait_s: float | None, bound_s: float, chance: float) -> int:
    """When a refused client should come back, whole seconds, at least 1.

    wait_s: of the queue, which has to get down to bound_s. chance: from 0 to below 1; it spreads
        the clients of one burst over half as much again.
    """
    excess_s = NO_INSTANCE_RETRY_S if wait_s is None else wait_s - bound_s
    return round(min(max(excess_s, 1.0), MAX_RETRY_S) * (1 + chance / 2))
