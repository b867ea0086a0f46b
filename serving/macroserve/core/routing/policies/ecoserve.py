"""EcoServe's rolling activation: instances take requests in turn, each for as long as it can."""

from collections.abc import Iterable, Sequence

from macroserve.core.routing.constraints import Check, Demand, check, wait_s
from macroserve.core.routing.decision import Choice, RouteReason
from macroserve.core.status import InstanceView


def ecoserve_route(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    """EcoServe, Algorithm 1, InterSchedule.

    The paper moves on to the next instance unseen; here the search goes on through the cyclic
    order, and where no instance satisfies the constraints the least wait decides.
    """
    if view := first_satisfying(candidates, demand):
        return view, RouteReason.SATISFIES
    return min(candidates, key=lambda view: wait_s(view, demand)), RouteReason.LEAST_WAIT


def first_satisfying(candidates: Iterable[InstanceView], demand: Demand) -> InstanceView | None:
    """The first in the order given that satisfies the constraints."""
    satisfied = Check.SATISFIED
    return next((view for view in candidates if check(view, demand) is satisfied), None)
