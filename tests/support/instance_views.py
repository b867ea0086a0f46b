"""Instances of a cell as routing sees them, at one moment and for one request."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from macroserve.core.request import Request, Slo
from macroserve.core.routing.decision import Check, RouteDecision, RouteReason, RouteRequest
from macroserve.core.routing.route import route
from macroserve.core.status import InstanceStatus, InstanceView, Pool
from macroserve.core.strategies import strategy

# 512 tokens: half a second of prefill against a target of 2 s; 640 tokens: 40 blocks.
NOW = 100.0
FRESH = RouteRequest(Request("r", NOW, 512, 4096, Slo(ttft_s=2.0, tpot_s=0.1)), 128)
OFFLOADED = replace(FRESH, offloaded=True)
STATUS = InstanceStatus(
    seq=1,
    prefill_s_per_token=2**-10,
    num_blocks=1000,
    free_blocks=1000,
)


def aged(age_s: float) -> RouteRequest:
    return replace(FRESH, request=replace(FRESH.request, arrival_s=NOW - age_s))


def lp(name: str, pool: Pool = Pool.LP, in_flight: int = 0, **status: object) -> InstanceView:
    return InstanceView(
        name,
        pool,
        msgspec.structs.replace(STATUS, **status),
        NOW,
        max_num_seqs=64,
        in_flight_requests=in_flight,
    )


def hp(name: str, in_flight: int = 0, **status: object) -> InstanceView:
    return lp(name, Pool.HP, in_flight, **status)


def last_decision(name: str, instance: str | None) -> RouteDecision | None:
    """Previous decision of a strategy with rotating or kept instances."""
    reason = RouteReason.ROUND_ROBIN if name == "ascendra" else RouteReason.SATISFIES
    return instance and RouteDecision(instance, reason, 0.0, check=Check.SATISFIED, late=False)


def routed(
    name: str,
    views: Sequence[InstanceView],
    request: RouteRequest = FRESH,
    last: str | None = None,
) -> tuple[str | None, RouteReason]:
    decision = route(strategy(name), views, last_decision(name, last), request, NOW)
    return decision.instance, decision.reason


BUSY = {"waiting_prefill_s": 1.75, "phase_prefill_s": 1.75, "num_waiting": 3}
BUSIER = {"waiting_prefill_s": 3.0, "phase_prefill_s": 3.0, "num_waiting": 5}
PREFILLING = {"waiting_prefill_s": 3.0, "phase_prefill_s": 3.0, "num_running": 1}
