"""Ascendra's two pools: LP instances take requests in turn, HP instances the urgent ones."""

from collections.abc import Iterator, Sequence

from macroserve.core.routing.constraints import Demand, wait_s
from macroserve.core.routing.decision import Choice, RouteReason
from macroserve.core.status import InstanceView, Pool

TICKET_LOAD = 0.5
"""An HP instance offers tickets below this share of its sequences and of its blocks. Without it
new requests fill the HP instances, and urgent ones find no room there."""


def ascendra_route(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    """Offloaded requests go to HP, then tickets are honoured, then LP instances take turns."""
    low, high = split(candidates)
    if high and demand.offloaded:
        return soonest(high, demand), RouteReason.URGENT
    if view := next(tickets(high), None):
        return view, RouteReason.TICKET
    return low[0], RouteReason.ROUND_ROBIN


def split(
    candidates: Sequence[InstanceView],
) -> tuple[Sequence[InstanceView], Sequence[InstanceView]]:
    """LP and HP instances; where there are no LP instances, all stand in for them."""
    hp = Pool.HP
    high = [view for view in candidates if view.pool is hp]
    low = [view for view in candidates if view.pool is not hp]
    return low or candidates, high


def soonest(views: Sequence[InstanceView], demand: Demand) -> InstanceView:
    """The instance with the least wait."""
    return min(views, key=lambda view: wait_s(view, demand))


def tickets(high: Sequence[InstanceView]) -> Iterator[InstanceView]:
    """The HP instances that offer a ticket: nothing waits or is on its way, and load is light."""
    for view in high:
        status = view.status
        if (
            status.num_waiting == 0
            and view.in_flight_requests == 0
            and status.num_running < TICKET_LOAD * view.max_num_seqs
            and status.num_blocks - status.free_blocks < TICKET_LOAD * status.num_blocks
        ):
            yield view
