"""Routing inside a cell; ``route`` is its only entry point."""

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

    The others matter only where the policy decides by load:

    had_adapter_s: by instance, its last request of the same adapter, seconds; a tie-breaker.
    cached: by instance, prompt tokens expected in its prefix cache; see ``prefixes.with_prefix``.
    session_holder: instance of the session's last request; preferred if the first token is in time.
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
    """Return the instance of the request's session, else that of its prefix or the chosen one."""
    if session_holder is not None:
        found = with_session(chosen, candidates, session_holder, demand)
        if found is not None:
            return found
    return with_prefix(chosen, candidates, demand) if demand.cached else chosen


def _for_trial(candidates: Sequence[InstanceView], demand: Demand) -> RouteDecision:
    """Route a trial to the instance where the fewest requests and the least work are at stake."""
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
    """Return the requests and the used KV blocks that a break of the instance would lose."""
    status = view.status
    return view.num_outstanding, status.num_blocks - status.free_blocks + view.in_flight_blocks


def _in_cyclic_order(
    views: Sequence[InstanceView], last: RouteDecision | None, exclude: frozenset[str]
) -> list[InstanceView]:
    """Return the eligible instances in cyclic order, from the first if ``last`` gives no start."""
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
    """Return whether no candidate meets the TTFT target, checking the chosen one first."""
    left_s = demand.ttft_left_s
    return (
        request.request.num_streamed_tokens == 0
        and wait_s(chosen, demand) > left_s
        and all(wait_s(view, demand) > left_s for view in candidates)
    )
