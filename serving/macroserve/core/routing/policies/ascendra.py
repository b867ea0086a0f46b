"""Ascendra has two pools: LP instances take requests in turn, HP instances the urgent ones."""

from collections.abc import Iterator, Sequence

from macroserve.core.routing.constraints import Demand, wait_s
from macroserve.core.routing.decision import Choice, RouteReason
from macroserve.core.routing.policies.ecoserve import first_satisfying
from macroserve.core.status import InstanceView, Pool

TICKET_LOAD = 0.5
"""Share of its sequences and of its blocks below which an HP instance offers tickets. Without this
bound new requests fill the HP instances, and urgent ones find no room there."""


def ascendra_route(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    """Route offloaded requests to HP, then to HP instances with tickets, then to LP instances in
    turn."""
    low, high = split(candidates)
    return to_high(high, demand) or (low[0], RouteReason.ROUND_ROBIN)


def to_high(
    high: Sequence[InstanceView], demand: Demand, *, checked: bool = False
) -> Choice | None:
    """Return the HP instance for an offloaded request, or one with a ticket, if there is one.

    checked: a ticket counts only where EcoServe's constraints are satisfied.
    """
    if high and demand.offloaded:
        return soonest(high, demand), RouteReason.URGENT
    offers = tickets(high)
    view = first_satisfying(offers, demand) if checked else next(offers, None)
    return (view, RouteReason.TICKET) if view else None


def split(
    candidates: Sequence[InstanceView],
) -> tuple[Sequence[InstanceView], Sequence[InstanceView]]:
    """Return the LP and the HP instances; without LP instances, all instances take that role."""
    hp = Pool.HP
    high = [view for view in candidates if view.pool is hp]
    low = [view for view in candidates if view.pool is not hp]
    return low or candidates, high


def soonest(views: Sequence[InstanceView], demand: Demand) -> InstanceView:
    """Return the instance with the least wait."""
    return min(views, key=lambda view: wait_s(view, demand))


def tickets(high: Sequence[InstanceView]) -> Iterator[InstanceView]:
    """Yield the HP instances that offer a ticket: nothing waits or is in flight, and load is
    light."""
    for view in high:
        status = view.status
        if (
            status.num_waiting == 0
            and view.in_flight_requests == 0
            and status.num_running < TICKET_LOAD * view.max_num_seqs
            and status.num_blocks - status.free_blocks < TICKET_LOAD * status.num_blocks
        ):
            yield view
