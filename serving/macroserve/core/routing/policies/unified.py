"""The combination: as many requests for each instance, over Ascendra's pools.

What a request costs its instance is its decodes more than its prompt, so that where the first token
comes soonest is not where it does least harm. EcoServe's rolling order is for phases: where batches
mix, to let one instance have all prompts for as long as it can costs a quarter of the goodput.
"""

from collections.abc import Sequence

from macroserve.core.routing.constraints import Demand, wait_s
from macroserve.core.routing.decision import Choice, RouteReason
from macroserve.core.routing.policies.ascendra import soonest, split, tickets
from macroserve.core.routing.policies.ecoserve import first_satisfying
from macroserve.core.status import InstanceView

MIN_PREFILL_SHARE = 0.1
"""However busy with decoding, an instance is taken to spend this share of its time on prefill."""


def unified_route(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    """Offloaded requests to HP, tickets that satisfy, the LP instance with the fewest requests, and
    HP where only that still makes the TTFT target.

    While nobody is late, only LP instances that make the target are chosen from, if there are any.
    Otherwise those that still make it are those with the most to decode, who bear no more.
    A request whose target is lost already would take HP's time from those that can be saved.
    """
    low, high = split(candidates)
    rescue = soonest(high, demand) if high else None
    if rescue and demand.offloaded:
        return rescue, RouteReason.URGENT
    if view := first_satisfying(tickets(high), demand):
        return view, RouteReason.TICKET
    left_s = demand.ttft_left_s
    chosen = _least_loaded(low, demand)
    if _first_token_s(chosen, demand) > left_s and not _some_wait_too_long(low, demand):
        in_time = [view for view in low if _first_token_s(view, demand) <= left_s]
        chosen = _least_loaded(in_time, demand) if in_time else chosen
    if rescue and wait_s(rescue, demand) <= left_s < _first_token_s(chosen, demand):
        return rescue, RouteReason.URGENT
    return chosen, RouteReason.LEAST_LOAD


def _least_loaded(views: Sequence[InstanceView], demand: Demand) -> InstanceView:
    """Of as many requests, where the first token comes soonest."""
    loads = [view.num_outstanding for view in views]
    fewest = min(loads)
    least = [view for view, load in zip(views, loads, strict=True) if load == fewest]
    return min(least, key=lambda view: _first_token_s(view, demand))


def _some_wait_too_long(views: Sequence[InstanceView], demand: Demand) -> bool:
    """Whether somebody has waited there for longer than this request may."""
    return any(view.status.oldest_wait_s > demand.ttft_left_s for view in views)


def _first_token_s(view: InstanceView, demand: Demand) -> float:
    """Predicted time to the first token beside what decodes there.

    Decoding claims ``decode_step_s`` of every TPOT target; the rest of the time is prefill's.
    """
    share = max(MIN_PREFILL_SHARE, 1 - view.status.decode_step_s / demand.tpot_s)
    return wait_s(view, demand) / share
