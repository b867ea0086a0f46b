"""EcoServe's Algorithm 2 names the first violated constraint, tested at its edges."""

from dataclasses import replace

import msgspec
import pytest

from macroserve.core.request import Request, Slo
from macroserve.core.routing.constraints import Demand, check, wait_s
from macroserve.core.routing.decision import Check, RouteRequest
from macroserve.core.status import InstanceStatus, InstanceView, Pool

# 512 tokens to prefill in 0.5 s, 640 tokens (40 blocks) to keep, arrived 1 s ago, 1 s left.
NOW = 101.0
REQUEST = RouteRequest(Request("r", 100.0, 512, 4096, Slo(ttft_s=2.0, tpot_s=0.1)), 128)
STATUS = InstanceStatus(
    seq=1, prefill_s_per_token=2**-10, num_blocks=256, free_blocks=40, block_size=16
)
VIEW = InstanceView("i", Pool.LP, STATUS, as_of_s=NOW, max_num_seqs=128)
MORE = 2**-20


def view(status: dict[str, object] | None = None, **changes: object) -> InstanceView:
    return msgspec.structs.replace(
        VIEW, status=msgspec.structs.replace(STATUS, **(status or {})), **changes
    )


@pytest.mark.parametrize(
    ("instance", "expected"),
    [
        (VIEW, Check.SATISFIED),
        # What was to prefill in this phase, what is in flight and the request's own must fit.
        (view({"phase_prefill_s": 0.5}), Check.SATISFIED),
        (view({"phase_prefill_s": 0.5 + MORE}), Check.TTFT),
        (view({"phase_prefill_s": 0.25}, in_flight_prefill_s=0.25), Check.SATISFIED),
        (view({"phase_prefill_s": 0.25}, in_flight_prefill_s=0.25 + MORE), Check.TTFT),
        (view({"waiting_prefill_s": 9.0}), Check.SATISFIED),
        # The slack pays for all of that, and has shrunk since the status came.
        (view({"saved_tpot_p10_s": 0.5}), Check.SATISFIED),
        (view({"saved_tpot_p10_s": 0.5 - MORE}), Check.TPOT),
        (view({"saved_tpot_p10_s": 0.75}, as_of_s=NOW - 0.25), Check.SATISFIED),
        (view({"saved_tpot_p10_s": 0.75}, as_of_s=NOW - 0.25 - MORE), Check.TPOT),
        (view({"saved_tpot_p10_s": 0.75}, in_flight_prefill_s=0.25 + MORE), Check.TPOT),
        (view({"saved_tpot_mean_s": 0.0, "saved_tpot_p10_s": 0.5}), Check.SATISFIED),
        # Prompt and predicted response must find free blocks.
        (view({"free_blocks": 39}), Check.MEMORY),
        (view({"free_blocks": 41}, in_flight_blocks=1), Check.SATISFIED),
        (view({"free_blocks": 41}, in_flight_blocks=2), Check.MEMORY),
        # The first violated constraint has the word.
        (view({"phase_prefill_s": 9.0, "saved_tpot_p10_s": 0.0, "free_blocks": 0}), Check.TTFT),
        (view({"saved_tpot_p10_s": 0.0, "free_blocks": 0}), Check.TPOT),
    ],
)
def test_constraints_violated_give_the_first_of_them(
    instance: InstanceView, expected: Check
) -> None:
    assert check(instance, Demand.of(REQUEST, by_mean=False, now=NOW)) is expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"saved_tpot_mean_s": 0.5, "saved_tpot_p10_s": 0.0}, Check.SATISFIED),
        ({"saved_tpot_mean_s": 0.5 - MORE, "saved_tpot_p10_s": 9.0}, Check.TPOT),
    ],
)
def test_constraints_by_mean_use_the_mean_saved_tpot(
    status: dict[str, object], expected: Check
) -> None:
    assert check(view(status), Demand.of(REQUEST, by_mean=True, now=NOW)) is expected


def test_constraints_for_one_token_more_need_one_block_more() -> None:
    longer = replace(REQUEST, num_output_tokens=129)
    demand = Demand.of(longer, by_mean=False, now=NOW)
    assert check(view({"free_blocks": 40}), demand) is Check.MEMORY
    assert check(view({"free_blocks": 41}), demand) is Check.SATISFIED


def test_constraints_of_a_resumed_request_use_the_whole_target() -> None:
    resumed = replace(REQUEST, request=replace(REQUEST.request, num_streamed_tokens=7))
    demand = Demand.of(resumed, by_mean=False, now=NOW + 1000)
    assert demand.ttft_left_s == 2.0
    assert Demand.of(REQUEST, by_mean=False, now=NOW + 1000).ttft_left_s == -999.0


@pytest.mark.parametrize(("ttft_s", "expected_s"), [(1.0, 1.25), (30.0, 3.25)])
def test_wait_counts_only_prefills_that_go_before_the_request(ttft_s, expected_s) -> None:
    instance = view(
        {"waiting_prefill_s": 2.5, "yielding": ((30.0, 2.0),)}, in_flight_prefill_s=0.25
    )
    query = replace(REQUEST, request=replace(REQUEST.request, slo=Slo(ttft_s, 0.1)))
    assert wait_s(instance, Demand.of(query, by_mean=False, now=NOW)) == expected_s


def test_wait_counts_waiting_prefills_and_not_those_of_the_phase() -> None:
    instance = view({"waiting_prefill_s": 1.0, "phase_prefill_s": 9.0}, in_flight_prefill_s=0.25)
    assert wait_s(instance, Demand.of(REQUEST, by_mean=False, now=NOW)) == 1.75
