"""Routing policies: each chooses an instance of a cell for a request.

A policy is a function of the candidates, in cyclic order (``route.py``), and the demand of a
request. A strategy names its policy (``core/strategies.py``).
"""

from collections.abc import Iterable, Iterator, Sequence

from macroserve.core.routing.constraints import Demand, check, first_token_s, wait_s
from macroserve.core.routing.decision import Check, Choice, RouteReason
from macroserve.core.status import InstanceView, Pool

TICKET_LOAD = 0.5
"""Share of sequences and of blocks in use below which an HP instance offers tickets. Without this
limit new requests fill the HP instances and leave no room for urgent ones."""

# -- baselines


def least_load_route(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    """Route to the instance with the fewest outstanding requests, then the fewest tokens to prefill
    and, by prediction, to decode.

    By tokens alone, an instance that has just prefilled a long prompt would get the next one at
    once, and its decodes would never catch up.
    """
    return min(candidates, key=_load), RouteReason.LEAST_LOAD


def _load(view: InstanceView) -> tuple[int, int]:
    status = view.status
    num_tokens = status.waiting_tokens + status.remaining_tokens + view.in_flight_tokens
    return view.num_outstanding, num_tokens


# -- EcoServe


def ecoserve_route(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    """Route by EcoServe's Algorithm 1, InterSchedule.

    The paper moves on to the next instance unchecked; here the search continues in cyclic order,
    and if no instance satisfies the constraints, the one with the least wait is chosen.
    """
    if view := first_satisfying(candidates, demand):
        return view, RouteReason.SATISFIES
    return min(candidates, key=lambda view: wait_s(view, demand)), RouteReason.LEAST_WAIT


def first_satisfying(candidates: Iterable[InstanceView], demand: Demand) -> InstanceView | None:
    """Return the first candidate that satisfies the constraints."""
    satisfied = Check.SATISFIED
    return next((view for view in candidates if check(view, demand) is satisfied), None)


# -- Ascendra


def ascendra_route(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    """Route offloaded requests to HP, others to HP instances with tickets, then to LP instances in
    turn."""
    low, high = split_pools(candidates)
    return to_high(high, demand) or (low[0], RouteReason.ROUND_ROBIN)


def to_high(
    high: Sequence[InstanceView], demand: Demand, *, checked: bool = False
) -> Choice | None:
    """Return the HP instance for an offloaded request, or one with a ticket, if any.

    checked: whether a ticket counts only if EcoServe's constraints are satisfied.
    """
    if high and demand.offloaded:
        return soonest(high, demand), RouteReason.URGENT
    offers = tickets(high)
    view = first_satisfying(offers, demand) if checked else next(offers, None)
    return (view, RouteReason.TICKET) if view else None


def split_pools(
    candidates: Sequence[InstanceView],
) -> tuple[Sequence[InstanceView], Sequence[InstanceView]]:
    """Return the LP and the HP instances; without LP instances, all instances take that role."""
    hp = Pool.HP
    high = [view for view in candidates if view.pool is hp]
    low = [view for view in candidates if view.pool is not hp]
    return low or candidates, high


def soonest(views: Sequence[InstanceView], demand: Demand) -> InstanceView:
    return min(views, key=lambda view: wait_s(view, demand))


def tickets(high: Sequence[InstanceView]) -> Iterator[InstanceView]:
    """Yield the HP instances that offer a ticket: lightly loaded, with no request waiting or in
    flight."""
    for view in high:
        status = view.status
        if (
            status.num_waiting == 0
            and view.in_flight_requests == 0
            and status.num_running < TICKET_LOAD * view.max_num_seqs
            and status.num_blocks - status.free_blocks < TICKET_LOAD * status.num_blocks
        ):
            yield view


# -- combinations


def macro_route(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    """Route offloaded requests to HP, others to a ticket (Ascendra) whose instance satisfies the
    constraints, then by EcoServe's Algorithm 1 among the LP instances.

    A ticket means that no request waits for a prefill. EcoServe's Algorithm 2 also checks that the
    decodes have saved the time for one more.
    """
    low, high = split_pools(candidates)
    return to_high(high, demand, checked=True) or ecoserve_route(low, demand)


def unified_route(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    """Route offloaded requests to HP, others to a ticket that satisfies the constraints, else to
    the LP instance with the fewest requests, or to HP if only HP still meets the TTFT target.

    A request's decodes cost its instance more than its prompt, so an early first token does not
    mean low cost. EcoServe's rolling order suits phases: with mixed batches, sending all prompts to
    one instance for as long as possible costs a quarter of the goodput.

    While no request is late, LP instances that meet the target are preferred. Otherwise those that
    still meet it have the most to decode and can take no more. A request that has already missed
    its target would take HP's time from requests that can be saved.
    """
    low, high = split_pools(candidates)
    if choice := to_high(high, demand, checked=True):
        return choice
    left_s = demand.ttft_left_s
    chosen = _least_loaded(low, demand)
    if first_token_s(chosen, demand) > left_s and not _some_wait_too_long(low, demand):
        fewest = chosen.num_outstanding  # instances with this few would all be late
        in_time = [
            view
            for view in low
            if view.num_outstanding > fewest and first_token_s(view, demand) <= left_s
        ]
        chosen = _least_loaded(in_time, demand) if in_time else chosen
    rescue = soonest(high, demand) if high else None
    if rescue and wait_s(rescue, demand) <= left_s < first_token_s(chosen, demand):
        return rescue, RouteReason.URGENT
    return chosen, RouteReason.LEAST_LOAD


def _least_loaded(views: Sequence[InstanceView], demand: Demand) -> InstanceView:
    """Return the instance with the fewest requests, then the earliest first token."""
    loads = [view.num_outstanding for view in views]
    fewest = min(loads)
    least = [view for view, load in zip(views, loads, strict=True) if load == fewest]
    return min(least, key=lambda view: first_token_s(view, demand))


def _some_wait_too_long(views: Sequence[InstanceView], demand: Demand) -> bool:
    """Return whether some instance's oldest wait exceeds this request's TTFT budget."""
    return any(view.status.oldest_wait_s > demand.ttft_left_s for view in views)
