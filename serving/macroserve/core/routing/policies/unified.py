"""The unified strategy gives each instance equally many requests, over Ascendra's pools.

A request costs its instance more by its decodes than by its prompt, so that the instance with the
soonest first token is not the one where it does least harm. EcoServe's rolling order suits phases:
where batches mix, sending all prompts to one instance for as long as possible costs a quarter of
the goodput.
"""

from collections.abc import Sequence

from macroserve.core.routing.constraints import Demand, first_token_s, wait_s
from macroserve.core.routing.decision import Choice, RouteReason
from macroserve.core.routing.policies.ascendra import soonest, split, to_high
from macroserve.core.status import InstanceView


def unified_route(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    """Route offloaded requests to HP, others to a ticket that satisfies the constraints, else to
    the LP instance with the fewest requests, or to HP if only HP still meets the TTFT target.

    While no request is late, only LP instances that meet the target are considered, if there are
    any. Otherwise the instances that still meet it are those with the most to decode, which bear no
    more. A request whose target is already lost would take HP's time from requests that can be
    saved.
    """
    low, high = split(candidates)
    if choice := to_high(high, demand, checked=True):
        return choice
    left_s = demand.ttft_left_s
    chosen = _least_loaded(low, demand)
    if first_token_s(chosen, demand) > left_s and not _some_wait_too_long(low, demand):
        fewest = chosen.num_outstanding  # where all that have as few are late
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
    """Return the instance with the fewest requests, and among equals the soonest first token."""
    loads = [view.num_outstanding for view in views]
    fewest = min(loads)
    least = [view for view, load in zip(views, loads, strict=True) if load == fewest]
    return min(least, key=lambda view: first_token_s(view, demand))


def _some_wait_too_long(views: Sequence[InstanceView], demand: Demand) -> bool:
    """Return whether some request has waited there for longer than this request may."""
    return any(view.status.oldest_wait_s > demand.ttft_left_s for view in views)
