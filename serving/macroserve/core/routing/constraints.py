"""EcoServe's Algorithm 2, CheckConstraints, on the cell scheduler's view of an instance."""

from collections.abc import Mapping
from dataclasses import dataclass

from macroserve.core.routing.decision import Check, RouteRequest
from macroserve.core.status import InstanceView

MIN_PREFILL_SHARE = 0.1
"""Minimum share of time that an instance is assumed to spend on prefill, however busy decoding."""

NOTHING_CACHED: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand of a request on an instance, computed once per decision."""

    now: float
    """Time of the decision, seconds on the scheduler's clock."""
    num_prompt_tokens: int
    num_tokens: int
    """Tokens of prompt and predicted response."""
    ttft_s: float
    """TTFT target, seconds."""
    ttft_left_s: float
    """Time left of the TTFT target, seconds; negative once missed."""
    tpot_s: float
    """TPOT target, seconds."""
    offloaded: bool
    """Whether an LP instance handed the request back."""
    by_mean: bool
    """Whether the mean saved TPOT pays for a prefill, as in the paper, or its tenth percentile."""
    cached: Mapping[str, int]
    """Prompt tokens expected in prefix caches, by name of instance or cell; zeros are left out."""

    @staticmethod
    def of(
        request: RouteRequest,
        by_mean: bool,
        now: float,
        cached: Mapping[str, int] = NOTHING_CACHED,
    ) -> "Demand":
        return Demand(
            now=now,
            num_prompt_tokens=request.request.num_prompt_tokens,
            num_tokens=request.num_tokens,
            ttft_s=request.request.slo.ttft_s,
            ttft_left_s=request.ttft_left_s(now),
            tpot_s=request.request.slo.tpot_s,
            offloaded=request.offloaded,
            by_mean=by_mean,
            cached=cached,
        )


def wait_s(view: InstanceView, demand: Demand) -> float:
    """Return the least time to the request's first token on the instance, seconds: all prefills
    ahead of it, then its own."""
    num_tokens = demand.num_prompt_tokens - demand.cached.get(view.name, 0)
    return view.prefill_ahead_s(demand.ttft_s) + num_tokens * view.status.prefill_s_per_token


def first_token_s(view: InstanceView, demand: Demand) -> float:
    """Return the predicted seconds to the first token, in parallel with the instance's decodes."""
    return wait_s(view, demand) / prefill_share(view.status.decode_step_s, demand)


def prefill_share(decode_step_s: float, demand: Demand) -> float:
    """Return the share of time left for prefill: decodes take ``decode_step_s`` per TPOT target."""
    return max(MIN_PREFILL_SHARE, 1 - decode_step_s / demand.tpot_s)


def check(view: InstanceView, demand: Demand) -> Check:
    """Check the constraints of EcoServe's Algorithm 2, with three amendments.

    TTFT is compared with the time left of the request's target, not with the whole target. Saved
    TPOT shrinks as the status ages. Requests in flight count.
    """
    status = view.status
    prefill_s = (
        status.phase_prefill_s
        + view.in_flight_prefill_s
        + (demand.num_prompt_tokens - demand.cached.get(view.name, 0)) * status.prefill_s_per_token
    )
    if prefill_s > demand.ttft_left_s:
        return Check.TTFT
    saved_s = status.saved_tpot_mean_s if demand.by_mean else status.saved_tpot_p10_s
    if saved_s is not None and saved_s - (demand.now - view.as_of_s) < prefill_s:
        return Check.TPOT
    free_blocks = status.free_blocks - view.in_flight_blocks
    if demand.num_tokens > free_blocks * status.block_size:
        return Check.MEMORY
    return Check.SATISFIED
