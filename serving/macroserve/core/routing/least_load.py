"""The baselines' routing: the instance with the least work."""

from collections.abc import Sequence

from macroserve.core.routing.constraints import Demand
from macroserve.core.routing.decision import RouteReason
from macroserve.core.views import InstanceView


def choose(candidates: Sequence[InstanceView], demand: Demand) -> tuple[InstanceView, RouteReason]:
    """Fewest outstanding tokens: prompt tokens to prefill and predicted tokens to decode."""
    return min(candidates, key=_outstanding_tokens), RouteReason.LEAST_LOAD


def _outstanding_tokens(view: InstanceView) -> int:
    return view.status.waiting_tokens + view.status.remaining_tokens + view.in_flight_tokens
