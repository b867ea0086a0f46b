"""Triage defers some candidates and orders the others."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.linear_latency import NOW

from macroserve.core.request import Slo
from macroserve.core.scheduler.candidates import (
    RESERVED_TTFTS,
    infeasible,
)


@pytest.mark.parametrize(
    ("num_waiting", "begun", "num_deferred"),
    [
        (9, [], 0),  # each costs a trifle more than 0.1 s, and all are due in 1 s
        (12, [], 3),
        (12, [500, 500], 4),  # what is begun takes part, for what is left of it
    ],
)
def test_triage_of_equal_prompts_defers_them_one_by_one(
    make_step, num_waiting, begun, num_deferred
):
    step = make_step("unified", waiting=[50] * num_waiting, begun=begun, waited_s=0.0)
    assert len([*step.candidates.infeasible()]) == num_deferred


def test_triage_of_equal_requests_defers_the_last(make_step):
    step = make_step("unified", waiting=[50] * 12, waited_s=0.0)
    assert [seq.request_id for seq in step.candidates.infeasible()] == ["w9", "w10", "w11"]


@pytest.mark.parametrize(("ttft_s", "deferred"), [(1.0, ["w9"]), (30.0, ["b0", "w9"])])
def test_triage_defers_first_whoever_may_wait_longest(make_step, make_sequence, ttft_s, deferred):
    """Ten that are due in 1 s take a trifle more, and the one under way has another 0.08 s."""
    step = make_step("unified", waiting=[50] * 10, waited_s=0.0)
    begun = make_sequence(
        "b0", 99, arrival_s=NOW + 0.9 - ttft_s, slo=Slo(ttft_s, 0.05), cost_s=0.08
    )
    step.inputs.running.admit(begun, 2)
    assert [seq.request_id for seq in step.candidates.infeasible()] == deferred


def test_triage_behind_a_prompt_in_mid_stream_has_less_time(make_step):
    """The prompt in mid-stream takes half of its 0.9 s left, out of the second that ten others
    have."""
    step = make_step("unified", waiting=[50] * 10, begun=[100], waited_s=0.0)
    step.inputs.running.prefilling["b0"].cost_s = 0.9
    step.inputs.running.prefilling["b0"].emit(1, NOW)
    assert len([*step.candidates.infeasible()]) == 5


@pytest.mark.parametrize(("left_s", "num_deferred"), [(0.041, 1), (0.043, 0)])
def test_triage_counts_the_decodes_of_the_step(make_step, make_sequence, left_s, num_deferred):
    """Ten decodes take 40 ms, and the prompt two."""
    step = make_step("unified", [0.0] * 10)
    step.inputs.waiting.add(make_sequence("w", arrival_s=NOW - 1.0 + left_s, cost_s=0.002))
    assert len([*step.candidates.infeasible()]) == num_deferred


@pytest.mark.parametrize(("left_s", "is_first"), [(0.3, True), (0.32, False)])
def test_slack_of_all_prompts_counts_the_decodes(make_step, make_sequence, left_s, is_first):
    """The prompts take 0.14 s each and the decodes 30 ms, while the long prompt's 0.3 s run out."""
    step = make_step("unified", [0.0] * 5)
    step.inputs.waiting.add(
        make_sequence("long", 1, arrival_s=NOW - 1.0 + left_s, cost_s=0.14, new=900)
    )
    step.inputs.waiting.add(make_sequence("short", 2, arrival_s=NOW - 0.6, cost_s=0.14, new=10))
    assert (order(step)[0] == "long") is is_first


@pytest.mark.parametrize(("service_s", "num_deferred"), [(0.9, 0), (1.1, 1)])
def test_triage_of_a_request_with_long_memory_use_can_keep_it(
    make_step, make_sequence, service_s, num_deferred
):
    step = make_step("unified")
    step.inputs.waiting.add(make_sequence("w", arrival_s=NOW, service_s=service_s, cost_s=3.0))
    assert len([*step.candidates.infeasible()]) == num_deferred


def test_triage_excludes_late_requests(make_step):
    step = make_step("unified", waiting=[50] * 5, waited_s=1.1)
    assert [*step.candidates.infeasible()] == []


def order(step):
    return [pick.seq.request_id for pick in step.pick(10_000)]


def test_order_under_triage_is_mid_stream_in_time_deferred_late(make_step, make_sequence):
    """Prompts in time, begun or not, are ordered by deadline."""
    step = make_step("unified", waiting=[50] * 2, begun=[400, 100], begun_s=0.2)
    step.inputs.waiting.add(make_sequence("streaming", 90, arrival_s=0.0, streamed=3))
    step.inputs.waiting.add(make_sequence("costly", 91, arrival_s=NOW - 0.3, cost_s=5.0))
    step.inputs.waiting.add(make_sequence("late", 92, arrival_s=NOW - 3.0))
    assert order(step) == ["streaming", "b0", "b1", "w0", "w1", "costly", "late"]


@pytest.mark.parametrize(
    ("cost_s", "expected"),
    [
        (0.14, ["b0", "short", "w0", "long", "new"]),
        (0.16, ["b0", "w0", "long", "short", "new"]),  # 0.61 s for all, and 0.6 s for the first
    ],
)
def test_order_while_all_are_in_time_is_by_wait_per_token(
    make_step, make_sequence, cost_s, expected
):
    step = make_step("unified", waiting=[50], waited_s=0.4, begun=[100], begun_s=0.4)
    step.inputs.waiting.add(make_sequence("long", 90, arrival_s=NOW - 0.4, cost_s=0.2, new=90))
    step.inputs.waiting.add(make_sequence("short", 91, arrival_s=NOW - 0.3, cost_s=0.1, new=20))
    step.inputs.waiting.add(make_sequence("new", 92, arrival_s=NOW, cost_s=cost_s, new=1))
    assert order(step) == expected


def test_order_puts_a_deferred_begun_prompt_behind_others(make_step):
    step = make_step("unified", waiting=[50], begun=[300, 300], begun_s=1.1)
    assert order(step) == ["w0", "b0", "b1"]


def test_promised_tokens_go_to_the_oldest_late_request(make_step):
    step = make_step("unified", waiting=[50, 60], waited_s=3.0)
    assert order(step) == ["w1", "w0"]
    step.inputs.waiting.promised_tokens = 50
    assert order(step) == ["w0", "w1"]
    step = make_step("unified", waiting=[50, 60], begun=[70], begun_s=4.0, waited_s=3.0)
    step.inputs.waiting.promised_tokens = 69
    assert order(step) == ["w1", "b0", "w0"]
    step.inputs.waiting.promised_tokens = 70
    assert order(step) == ["b0", "w1", "w0"], "what is begun is late the longest"


@pytest.mark.parametrize(
    "full",
    [
        {"decoding": [1.0] * 6, "batch_s": 0.065},  # 71 of 100 ms
        {
            "decoding": [1.0] * 6,
            "num_blocks": 40,
            "begun": [10] * 9,
            "max_num_seqs": 64,
            "inflow": 1e6,
        },
        {"decoding": [1.0] * 6, "max_num_seqs": 8},
    ],
)
def test_deferred_request_begins_only_with_room(make_step, full):
    common = {"batch_s": 0.01, **full, "waiting": [20, 30], "waited_s": 3.0}
    assert "w1" in order(make_step("unified", **common))
    assert "w0" not in order(make_step("unified", **common))
    roomy = {**common, "decoding": [1.0], "begun": ()}
    assert order(make_step("unified", **roomy)) == ["w1", "w0"]


@pytest.mark.parametrize(("num_blocks", "has_room"), [(10, True), (11, False)])
def test_deferred_request_leaves_memory_for_the_next_arrivals(make_step, num_blocks, has_room):
    common = {"decoding": [1.0] * 6, "waiting": [20], "waited_s": 3.0, "num_blocks": 22}
    config = make_step("unified", **common).inputs.config
    tokens = num_blocks * config.block_size
    inflow = tokens / (RESERVED_TTFTS * config.slo.ttft_s)
    step = make_step("unified", **common, inflow=inflow)
    assert step.inputs.running.blocks.free == 10
    assert ("w0" in order(step)) == has_room


def test_deferred_backlog_with_half_of_the_memory_free_drains(make_step):
    """The backlog is large: a fiftieth of the prefill alone would take for ever."""
    common = {"decoding": [1.0] * 3, "waiting": [20], "waited_s": 3.0, "inflow": 1e9}
    assert "w0" not in order(make_step("unified", **common, num_blocks=11))
    assert "w0" in order(make_step("unified", **common, num_blocks=12))


@pytest.mark.parametrize(("num_patient", "has_room"), [(12, True), (13, False)])
def test_deferred_request_has_no_room_while_responses_rest(make_step, num_patient, has_room):
    """A step bears 15 decodes, three of them urgent ones."""
    step = make_step(
        "unified", [1.0] * 3, [20], waited_s=3.0, patient=[9.0] * num_patient, max_num_seqs=128
    )
    assert ("w0" in order(step)) == has_room


def test_deferred_request_without_decodes_has_room(make_step):
    """Otherwise deferred requests could hold all the memory and wait for it to become free."""
    step = make_step(
        "unified", waiting=[500], waited_s=3.0, begun=[10] * 9, begun_s=3.0, num_blocks=20
    )
    assert len(order(step)) == 9


def test_deferred_begun_prompt_lets_feasible_ones_pass(make_step):
    step = make_step("unified", waiting=[50], begun=[500])
    assert order(step) == ["b0", "w0"]
    step = make_step("unified", waiting=[50], begun=[500])
    begun = step.inputs.running.prefilling["b0"]
    begun.service_s = begun.cost_s = 2.0  # which leaves 1.7 s of it, and 0.9 s are left
    assert order(step) == ["w0", "b0"]


def test_recomputed_request_in_mid_stream_goes_first(make_step):
    step = make_step("unified", waiting=[50], begun=[300, 300], begun_s=0.3)
    step.inputs.running.prefilling["b1"].emit(3, NOW - 0.2)
    assert order(step) == ["b1", "b0", "w0"]


def feasible(jobs, free_at_s):
    done_s = free_at_s
    for deadline_s, cost_s in sorted(jobs):
        done_s += cost_s
        if done_s > deadline_s:
            return False
    return True


def alike(deadlines_s, costs_s, free_at_s=0.0):
    """Return the costs of the requests that triage defers if each costs its service time."""
    starts_s = [d - c for d, c in zip(deadlines_s, costs_s, strict=True)]
    return infeasible(starts_s, costs_s, [1.0] * len(costs_s), free_at_s)


def most_in_time(jobs, free_at_s):
    for size in range(len(jobs), -1, -1):
        if any(feasible(kept, free_at_s) for kept in combinations(jobs, size)):
            return size
    raise AssertionError


# Multiples of 1/64 add up exactly.
durations = st.integers(0, 640).map(lambda n: n / 64)
costs = st.lists(st.integers(1, 200).map(lambda n: n / 64), max_size=8, unique=True)


@given(costs, st.lists(durations, min_size=8, max_size=8), durations)
def test_triage_of_any_jobs_defers_as_few_as_possible(some_costs, deadlines, free_at_s):
    jobs = sorted(zip(deadlines, some_costs, strict=False))
    deadlines_s, costs_s = [d for d, _ in jobs], [c for _, c in jobs]
    deferred = alike(deadlines_s, costs_s, free_at_s)
    kept = [(deadline_s, cost_s) for deadline_s, cost_s in jobs if cost_s not in deferred]
    assert feasible(kept, free_at_s)
    assert len(kept) == most_in_time(jobs, free_at_s)


def test_triage_defers_nothing_when_all_can_be_in_time():
    assert alike([1.0, 2.0, 3.0], [0.9, 0.8, 0.7]) == set()


def test_triage_defers_the_costliest_for_the_others():
    assert alike([2.0, 2.1, 2.2], [1.5, 0.4, 0.5]) == {1.5}


@pytest.mark.parametrize(
    ("services_s", "costs_s", "expected"),
    [
        ([0.5], [3.0], set()),  # nobody is behind it
        ([1.5], [3.0], {3.0}),
        ([0.5, 0.5], [3.0, 1.0], {3.0}),  # which the second would wait for
        ([0.5, 0.5], [0.6, 3.0], {3.0}),
        ([0.5, 0.4], [0.6, 3.0], set()),
    ],
)
def test_triage_ends_a_request_with_its_service_and_starts_others_after_its_cost(
    services_s, costs_s, expected
):
    starts_s = [1.0 - service_s for service_s in services_s]
    assert infeasible(starts_s, costs_s, [1.0] * len(costs_s), 0.0) == expected


@pytest.mark.parametrize(
    ("ttfts_s", "expected"),
    [
        ([1.0, 1.0, 1.0], {1.0}),
        ([30.0, 1.0, 1.0], {0.5}),  # although the second is the costliest
        ([60.0, 30.0, 1.0], {0.5}),  # the longest target gives way first, whatever it costs
        ([30.0, 60.0, 1.0], {1.0}),
        ([30.0, 1.0, 30.0], {0.75}),  # never one with a shorter target
        ([1.0, 1.0, 30.0], {0.75}),
    ],
)
def test_triage_defers_requests_with_longer_targets_first(ttfts_s, expected):
    deadlines_s, costs_s = [1.0, 1.5, 2.0], [0.5, 1.0, 0.75]
    starts_s = [d - c for d, c in zip(deadlines_s, costs_s, strict=True)]
    assert infeasible(starts_s, costs_s, ttfts_s, 0.0) == expected


def test_triage_defers_as_many_with_longer_targets_as_the_others_need():
    starts_s, costs_s = [2.0, 2.0, 2.0, 0.25], [0.25, 0.5, 0.75, 1.0]
    assert infeasible(starts_s, costs_s, [30.0, 30.0, 30.0, 1.0], 0.0) == {0.5, 0.75}


@given(costs, st.lists(st.tuples(durations, st.sampled_from([1.0, 30.0])), min_size=8), durations)
def test_triage_keeps_requests_of_the_shortest_target_as_if_there_were_no_others(
    some_costs, jobs, free_at_s
):
    jobs = sorted((d, c, t) for c, (d, t) in zip(some_costs, jobs, strict=False))
    starts_s, costs_s = [d - c for d, c, _ in jobs], [c for _, c, _ in jobs]
    deferred = infeasible(starts_s, costs_s, [t for *_, t in jobs], free_at_s)
    shortest_s = min([t for *_, t in jobs], default=0.0)
    alone = [(d, c) for d, c, t in jobs if t == shortest_s]
    expected = alike([d for d, _ in alone], [c for _, c in alone], free_at_s)
    assert deferred & {c for _, c in alone} == expected
    assert feasible([(d, c) for d, c, _ in jobs if c not in deferred], free_at_s)
