"""EcoServe activates instances in turn, each for as long as it can take requests."""

from collections.abc import Iterable, Sequence

from macroserve.core.routing.constraints import Demand, check, wait_s
from macroserve.core.routing.decision import Check, Choice, RouteReason
from macroserve.core.status import InstanceView


def ecoserve_route(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    """Route by EcoServe's Algorithm 1, InterSchedule.

    The paper moves on to the next instance unchecked; here the search continues through the cyclic
    order, and if no instance satisfies the constraints the least wait decides.
    """
    if view := first_satisfying(candidates, demand):
        return view, RouteReason.SATISFIES
    return min(candidates, key=lambda view: wait_s(view, demand)), RouteReason.LEAST_WAIT


def first_satisfying(candidates: Iterable[InstanceView], demand: Demand) -> InstanceView | None:
    """Return the first of the candidates, in the order given, that satisfies the constraints."""
    satisfied = Check.SATISFIED
    return next((view for view in candidates if check(view, demand) is satisfied), None)
