"""Ascendra's two pools: LP instances take requests in turn, HP instances the urgent ones."""

from collections.abc import Iterator, Sequence

from macroserve.core.routing.constraints import Demand, wait_s
from macroserve.core.routing.decision import RouteReason
from macroserve.core.views import InstanceView, Pool

URGENT_SHARE = 0.9
"""A request is urgent once its prefill and one full HP batch take more than this share of what is
left of its TTFT target (the tunable threshold of Ascendra, section 5.3)."""

TICKET_LOAD = 0.5
"""An HP instance offers tickets below this share of its sequences and of its blocks. Without it
new requests fill the HP instances, and urgent ones find no room there."""


def choose(candidates: Sequence[InstanceView], demand: Demand) -> tuple[InstanceView, RouteReason]:
    """Urgent requests go to HP, then tickets are honoured, then LP instances take turns."""
    low, high = split(candidates)
    if view := urgent(high, demand):
        return view, RouteReason.URGENT
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


def urgent(high: Sequence[InstanceView], demand: Demand) -> InstanceView | None:
    """The HP instance with the least wait, if the request is urgent.

    It is if an LP instance handed it back, or if HP still makes its target, but only just. One
    whose target is lost already would take HP's time from those that can be saved.
    """
    if not high:
        return None
    view = min(high, key=lambda view: wait_s(view, demand))
    if demand.offloaded:
        return view
    prefill_s = demand.num_prompt_tokens * view.status.prefill_s_per_token
    busy_s = prefill_s + view.status.max_step_s
    left_s = demand.ttft_left_s
    return view if busy_s > URGENT_SHARE * left_s and wait_s(view, demand) <= left_s else None


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
