"""``route`` is the only entry point to routing inside a cell."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from macroserve.core.routing.adapters import with_adapter
from macroserve.core.routing.constraints import NOTHING_CACHED, Demand, check, wait_s
from macroserve.core.routing.decision import Check, RouteDecision, RouteReason, RouteRequest
from macroserve.core.routing.prefixes import with_prefix
from macroserve.core.routing.sessions import with_session
from macroserve.core.status import InstanceView
from macroserve.core.strategy import Strategy


def route(
    strategy: Strategy,
    views: Sequence[InstanceView],
    last: RouteDecision | None,
    request: RouteRequest,
    now: float,
    had_adapter_s: Mapping[str, float] = MappingProxyType({}),
    cached: Mapping[str, int] = NOTHING_CACHED,
    session_holder: str | None = None,
) -> RouteDecision:
    """Decide which of ``views`` takes the request.

    last: the last decision ``in_turn``. The cyclic order begins with its instance (EcoServe,
        Algorithm 1), or after it where instances take turns (Ascendra).
    had_adapter_s: time by instance when it last got a request of the same adapter, seconds; where
        the load decides, it decides between equals.
    cached: prompt tokens that instances are expected to have in their prefix caches, by name; where
        the load decides, they decide next.
    session_holder: instance that got the last request of the session; where the load decides, it
        gets this one, if it is in time there.
    """
    candidates = _in_cyclic_order(views, last, request.exclude)
    if not candidates:
        return RouteDecision(None, RouteReason.NO_INSTANCE, math.inf, check=None, late=False)
    others = [view for view in candidates if not view.on_trial]
    demand = Demand.of(request, by_mean=strategy.mean_slack, now=now, cached=cached)
    if request.trial:
        return _for_trial(others, demand)
    candidates = others or candidates
    view, reason = strategy.route(candidates, demand)
    if reason is RouteReason.LEAST_LOAD:
        if had_adapter_s:
            view = with_adapter(view, candidates, had_adapter_s, demand)
        view = _at_home(view, candidates, session_holder, demand)
    return RouteDecision(
        instance=view.name,
        reason=reason,
        predicted_wait_s=wait_s(view, demand),
        check=check(view, demand),
        late=_is_late(request, candidates, view, demand),
        num_cached=cached.get(view.name, 0),
    )


def _at_home(
    chosen: InstanceView,
    candidates: Sequence[InstanceView],
    session_holder: str | None,
    demand: Demand,
) -> InstanceView:
    """Return the instance of the request's session, or else of its prompt's beginning; or the
    chosen one."""
    if session_holder is not None:
        found = with_session(chosen, candidates, session_holder, demand)
        if found is not None:
            return found
    return with_prefix(chosen, candidates, demand) if demand.cached else chosen


def _for_trial(candidates: Sequence[InstanceView], demand: Demand) -> RouteDecision:
    """Route a trial to the instance where the fewest requests, and the least work, are at stake."""
    if not candidates:
        return RouteDecision(None, RouteReason.TRIALS_BUSY, math.inf, check=None, late=False)
    view = min(candidates, key=_at_stake)
    return RouteDecision(
        view.name,
        RouteReason.TRIAL,
        wait_s(view, demand),
        check=Check.SATISFIED,
        late=False,
        num_cached=demand.cached.get(view.name, 0),
    )


def _at_stake(view: InstanceView) -> tuple[int, int]:
    """Return the requests at the instance, and the KV blocks that would have to be recomputed."""
    status = view.status
    return view.num_outstanding, status.num_blocks - status.free_blocks + view.in_flight_blocks


def _in_cyclic_order(
    views: Sequence[InstanceView], last: RouteDecision | None, exclude: frozenset[str]
) -> list[InstanceView]:
    """Return the instances that may be chosen, in cyclic order.

    The first of ``views`` begins where there is no last decision, or its instance is gone.
    """
    start = 0
    if last:
        skip = last.reason is RouteReason.ROUND_ROBIN
        start = next((i + skip for i, view in enumerate(views) if view.name == last.instance), 0)
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
    """Return whether no candidate meets the TTFT target; the chosen one is checked first, as that
    is enough if it does."""
    left_s = demand.ttft_left_s
    return (
        request.request.num_streamed_tokens == 0
        and wait_s(chosen, demand) > left_s
        and all(wait_s(view, demand) > left_s for view in candidates)
    )
