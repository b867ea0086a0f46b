"""Requests in flight between a decision of a cell and the status that admits them."""

from macroserve.core.request import Request, Slo
from macroserve.core.routing.decision import RouteRequest
from macroserve.core.status import InstanceStatus, InstanceView

EMPTY = InstanceStatus(seq=1, prefill_s_per_token=0.001, num_blocks=100, free_blocks=100)
"""Status of an instance without requests."""

NOTHING = (0, 0, 0.0, 0)


def request(request_id: str, num_tokens: int = 100, arrival_s: float = 0.0) -> RouteRequest:
    body = Request(request_id, arrival_s, num_tokens, 64, Slo(ttft_s=1.0, tpot_s=0.1))
    return RouteRequest(body, num_output_tokens=60)


def in_flight(view: InstanceView) -> tuple[int, int, float, int]:
    return (
        view.in_flight_requests,
        view.in_flight_tokens,
        view.in_flight_prefill_s,
        view.in_flight_blocks,
    )
