"""The baselines route to the instance with the least work."""

from collections.abc import Sequence

from macroserve.core.routing.constraints import Demand
from macroserve.core.routing.decision import Choice, RouteReason
from macroserve.core.status import InstanceView


def least_load_route(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    """Route to the instance with the fewest outstanding requests, and among equals the one with the
    fewest tokens to prefill and, as predicted, to decode.

    By tokens alone, an instance that has just prefilled a long prompt gets the next one at once,
    and its decodes never catch up.
    """
    return min(candidates, key=_load), RouteReason.LEAST_LOAD


def _load(view: InstanceView) -> tuple[int, int]:
    status = view.status
    num_tokens = status.waiting_tokens + status.remaining_tokens + view.in_flight_tokens
    return view.num_outstanding, num_tokens
