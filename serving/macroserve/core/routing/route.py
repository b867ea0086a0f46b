"""The one entry to routing inside a cell."""

import math
from collections.abc import Callable, Sequence

from macroserve.core.routing.constraints import Check, Demand, check, wait_s
from macroserve.core.routing.decision import Choice, RouteDecision, RouteReason, RouteRequest
from macroserve.core.routing.policies.ascendra import ascendra_route
from macroserve.core.routing.policies.baselines import least_load_route
from macroserve.core.routing.policies.disaggregated import disaggregated_route
from macroserve.core.routing.policies.ecoserve import ecoserve_route
from macroserve.core.routing.policies.unified import unified_route
from macroserve.core.status import InstanceView
from macroserve.core.strategy import Routing, Strategy

_Policy = Callable[[Sequence[InstanceView], Demand], Choice]

_POLICIES: dict[Routing, _Policy] = {
    Routing.LEAST_LOAD: least_load_route,
    Routing.ROLLING: ecoserve_route,
    Routing.POOLS: ascendra_route,
    Routing.BALANCED: unified_route,
    Routing.ROLES: disaggregated_route,
}


def route(
    strategy: Strategy,
    views: Sequence[InstanceView],
    last: str | None,
    request: RouteRequest,
    now: float,
) -> RouteDecision:
    """Which of ``views`` takes the request.

    last: the instance that the last decision ``in_turn`` chose. The cyclic order begins with it
        (EcoServe, Algorithm 1), or after it where instances take turns (Ascendra).
    """
    candidates = _in_cyclic_order(
        views, last, request.exclude, after_last=strategy.routing is Routing.POOLS
    )
    if not candidates:
        return RouteDecision(None, RouteReason.NO_INSTANCE, math.inf, satisfied=False, late=False)
    others = [view for view in candidates if not view.on_trial]
    demand = Demand.of(request, by_mean=strategy.mean_slack, now=now)
    if request.trial:
        return _for_trial(others, demand)
    candidates = others or candidates
    view, reason = _POLICIES[strategy.routing](candidates, demand)
    return RouteDecision(
        instance=view.name,
        reason=reason,
        predicted_wait_s=wait_s(view, demand),
        satisfied=check(view, demand) is Check.SATISFIED,
        late=_is_late(request, candidates, view, demand),
    )


def _for_trial(candidates: Sequence[InstanceView], demand: Demand) -> RouteDecision:
    """Where fewest requests would have to begin anew, of these where they would lose least."""
    if not candidates:
        return RouteDecision(None, RouteReason.TRIALS_BUSY, math.inf, satisfied=False, late=False)
    view = min(candidates, key=_at_stake)
    return RouteDecision(
        view.name, RouteReason.TRIAL, wait_s(view, demand), satisfied=True, late=False
    )


def _at_stake(view: InstanceView) -> tuple[int, int]:
    """Requests there, and the KV blocks that would have to be computed again."""
    status = view.status
    return view.num_outstanding, status.num_blocks - status.free_blocks + view.in_flight_blocks


def _in_cyclic_order(
    views: Sequence[InstanceView], last: str | None, exclude: frozenset[str], after_last: bool
) -> list[InstanceView]:
    """Those that may be chosen, from ``last`` or after it on, from the first where it is gone."""
    start = next((i + after_last for i, view in enumerate(views) if view.name == last), 0)
    return [
        view
        for view in (*views[start:], *views[:start])
        if not view.status.draining and view.name not in exclude
    ]


def _is_late(
    request: RouteRequest,
    candidates: Sequence[InstanceView],
    chosen: InstanceView,
    demand: Demand,
) -> bool:
    """The chosen instance first: where it makes it, the others need no look."""
    left_s = demand.ttft_left_s
    return (
        request.request.num_streamed_tokens == 0
        and wait_s(chosen, demand) > left_s
        and min(wait_s(view, demand) for view in candidates) > left_s
    )
