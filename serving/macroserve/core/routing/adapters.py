"""A request of an adapter prefers, among equal instances, the one that had the adapter last."""

from collections.abc import Mapping, Sequence
from math import inf

from macroserve.core.routing.constraints import Demand, wait_s
from macroserve.core.status import InstanceView


class AdapterRecord:
    """The record tells when each instance of a cell last got a request of each adapter."""

    def __init__(self) -> None:
        self._times: dict[str, dict[str, float]] = {}

    def note(self, adapter: str | None, instance: str, now: float) -> None:
        if adapter is not None:
            self._times.setdefault(adapter, {})[instance] = now

    def forget(self, instance: str) -> None:
        """Note that an instance has left: the next one of its name has no adapter yet."""
        for times in self._times.values():
            times.pop(instance, None)

    def times(self, adapter: str | None) -> Mapping[str, float]:
        """Return the time by name of each instance that has had the adapter, seconds."""
        return self._times.get(adapter or "", {})


def with_adapter(
    chosen: InstanceView,
    candidates: Sequence[InstanceView],
    times: Mapping[str, float],
    demand: Demand,
) -> InstanceView:
    """Return the instance that had the adapter last, of those as good as the chosen one: of its
    pool, with no more requests, and in time or no later.

    An instance loads an adapter that is not in a slot before the first token.
    """
    latest_s = max(wait_s(chosen, demand), demand.ttft_left_s)
    equals = [
        view
        for view in candidates
        if view.pool is chosen.pool
        and view.num_outstanding <= chosen.num_outstanding
        and wait_s(view, demand) <= latest_s
    ]
    return max((chosen, *equals), key=lambda view: times.get(view.name, -inf))
