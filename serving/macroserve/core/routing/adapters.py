"""Affinity of requests to instances that have their LoRA adapter loaded."""

from collections.abc import Mapping, Sequence
from math import inf

from macroserve.core.routing.constraints import Demand, wait_s
from macroserve.core.status import InstanceView


class AdapterRecord:
    """Time at which each instance of a cell last got a request of each adapter."""

    def __init__(self) -> None:
        self._times: dict[str, dict[str, float]] = {}

    def note(self, adapter: str | None, instance: str, now: float) -> None:
        if adapter is not None:
            self._times.setdefault(adapter, {})[instance] = now

    def forget(self, instance: str) -> None:
        """Forget an instance; a successor of the same name has no adapters loaded."""
        for times in self._times.values():
            times.pop(instance, None)

    def times(self, adapter: str | None) -> Mapping[str, float]:
        """Return the latest use of the adapter on each instance that has had it, seconds."""
        return self._times.get(adapter or "", {})


def with_adapter(
    chosen: InstanceView,
    candidates: Sequence[InstanceView],
    times: Mapping[str, float],
    demand: Demand,
) -> InstanceView:
    """Return the instance that used the adapter last, among those as good as the chosen one: in its
    pool, with no more requests, and in time or no later.

    Loading an adapter that is not in a slot delays the first token.
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
