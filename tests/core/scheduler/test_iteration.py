"""An iteration chooses among candidates: triage defers some, and memory is reserved for others."""

from dataclasses import replace
from math import inf

import pytest
from support.linear_latency import NOW

from macroserve.core.request import Slo
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.candidates import RESERVED_TTFTS
from macroserve.core.scheduler.estimators import WINDOW_S
from macroserve.core.scheduler.iteration import Plan
from macroserve.core.scheduler.sequence import State
from macroserve.core.strategies import STRATEGIES


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


@pytest.mark.parametrize(
    ("exact_kv", "expected"),
    [
        # A prompt of 100 and the block of its next token, or 115 more for a response of 100.
        (False, [8, 2]),
        (True, [14, 8]),
    ],
)
def test_reservation_of_blocks_follows_the_strategy(make_step, exact_kv, expected):
    step = make_step(
        "unified", waiting=[100, 10], changes={"exact_kv": exact_kv}, lengths=[100], new=400
    )
    assert [pick.num_blocks for pick in step.pick(512)] == expected


@pytest.mark.parametrize("exact_kv", [False, True])
def test_reservation_is_at_most_the_longest_response(make_step, exact_kv):
    step = make_step(
        "unified", waiting=[100, 10], changes={"exact_kv": exact_kv}, lengths=[100], new=3
    )
    assert [pick.num_blocks for pick in step.pick(512)] == [7, 1]


def test_reservation_of_a_preempted_response_is_its_rest(make_step, make_sequence):
    step = make_step("unified", changes={"exact_kv": True}, lengths=[100])
    seq = make_sequence("r", prompt=100, new=400)
    seq.emit(60, NOW)
    seq.forget_cache()
    step.inputs.waiting.add(seq)
    # 160 tokens, and 46 for the 40 that it is expected to add.
    assert [pick.num_blocks for pick in step.pick(512)] == [13]


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


def test_begun_prompts_continue_if_no_other_can_begin(make_step):
    """A begun prompt may stand behind one in the order that finds no memory, which begun ones
    hold."""
    step = make_step("unified", waiting=[900], begun=[100], begun_s=0.05, num_blocks=16)
    assert order(step) == ["b0"]


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


SHORT = {"decoding": [1.0] * 6, "waiting": [50], "num_blocks": 23, "hidden_states_per_block": 32}
"""Eleven blocks of 23 are free, and a pool full of hidden states takes 0.7 ms of a step of 32."""


@pytest.mark.parametrize(
    ("name", "fields", "cache"),
    [
        ("unified", {}, CacheKind.HIDDEN),
        ("unified", {"num_blocks": 24}, CacheKind.KV),
        ("unified", {"hidden_states_per_block": None}, CacheKind.KV),
        ("unified", {"hidden_states_per_block": 16}, CacheKind.KV),
        ("unified", {"hidden_states_per_block": 4000}, CacheKind.KV),
        ("vllm", {}, CacheKind.KV),
    ],
    ids=["short", "half is free", "not kept", "not smaller", "too dear", "never"],
)
def test_default_cache_with_short_memory_and_cheap_states_is_hidden(make_step, name, fields, cache):
    (pick,) = make_step(name, **{**SHORT, **fields}).pick(512)
    assert pick.cache is cache
    # Fifty tokens and the block of the next one: five blocks of 16.
    assert pick.num_blocks == (3 if cache is CacheKind.HIDDEN else 5)


@pytest.mark.parametrize(("num_hidden", "cache"), [(0, CacheKind.HIDDEN), (20_000, CacheKind.KV)])
def test_default_cache_excludes_present_rebuild_time_from_the_step(make_step, num_hidden, cache):
    """A pool full of hidden states takes 25 ms of a step of 32, of which 20 are theirs already."""
    step = make_step("unified", **{**SHORT, "hidden_states_per_block": 1087})
    step.inputs.decoding.num_hidden_tokens = num_hidden
    assert [pick.cache for pick in step.pick(512)] == [cache]


def test_default_cache_after_a_preemption_is_kv(make_step):
    queue = make_step("unified", **SHORT).inputs.waiting
    step = make_step("unified", **SHORT, preempted=tuple(queue))
    assert [pick.cache for pick in step.pick(512)] == [CacheKind.KV]


def test_prefill_beside_hidden_states_has_less_time(make_step):
    step = make_step("unified", [0.0] * 2, [500])
    whole = step.plan().picks[0].num_tokens
    hidden = replace(step.inputs, turn=replace(step.inputs.turn, num_hidden_tokens=5000))
    assert type(step)(hidden).plan().picks[0].num_tokens == whole - 5


def test_prefill_within_a_budget_runs_beside_the_decodes_of_the_turn(make_step, make_latency):
    step = make_step("unified", [1.0], patient=[9.0] * 3, latency=(latency := make_latency()))
    turn = replace(step.inputs.turn, ids=("d0",), num_tokens=9000)
    beside = replace(step.inputs, turn=turn).prefill_tokens_within(0.05)
    assert beside == latency.prefill_tokens_within(0.05, 512, num_decodes=1, decode_context=9000)
    assert beside < latency.prefill_tokens_within(0.05, 512, num_decodes=1, decode_context=12)


@pytest.mark.parametrize(
    ("decodes", "context", "hidden"),
    [(("d0", "d1", "d2"), 36, 0), (("d0", "d2"), 24, 12), (("d1",), 12, 0), ((), 0, 0)],
)
def test_work_of_a_plan_counts_only_decodes_that_run(
    make_step, make_latency, decodes, context, hidden
):
    latency = make_latency()
    step = make_step("ascendra", decoding=[0.5] * 3, latency=latency)
    if hidden:
        step.inputs.decoding["d0"].cache = CacheKind.HIDDEN
    work = step.inputs.work(Plan((), decodes, "these run"))
    assert work == latency.work((), len(decodes), context, hidden)


INTERACTIVE, BATCH = Slo(1.0, 0.05), Slo(30.0, 0.5)


@pytest.mark.parametrize(
    ("waited_s", "prefilled_s", "is_overdue", "is_starved"),
    [
        ({INTERACTIVE: 1.9, BATCH: 59.0}, 90.0, False, False),
        ({INTERACTIVE: 2.1, BATCH: 1.0}, 2.1, True, True),
        ({INTERACTIVE: 2.1, BATCH: 1.0}, 1.9, True, False),
        ({INTERACTIVE: 0.1, BATCH: 61.0}, 61.0, True, True),
        # The interactive prompt is not overdue, and the other bears a longer time without prefill.
        ({INTERACTIVE: 0.1, BATCH: 61.0}, 59.0, True, False),
        ({BATCH: 61.0}, 59.0, True, False),
    ],
)
@pytest.mark.parametrize("default", [INTERACTIVE, BATCH], ids=["interactive", "batch"])
def test_prompt_is_overdue_and_starved_by_its_own_target(
    make_step, make_sequence, waited_s, prefilled_s, is_overdue, is_starved, default
):
    """The default class counts for neither."""
    step = make_step("unified", [1.0], prefilled_s=prefilled_s, slo=default)
    queue = step.inputs.waiting
    for index, (slo, seconds) in enumerate(waited_s.items()):
        queue.add(make_sequence(f"w{index}", index, arrival_s=NOW - seconds, slo=slo))
    assert (step.inputs.overdue, step.inputs.starved) == (is_overdue, is_starved)
    for seq in [*queue]:
        queue.remove(seq)
    assert not (step.inputs.overdue or step.inputs.starved)


def test_begun_prompt_is_overdue_by_its_own_target(make_step, make_sequence):
    step = make_step("unified", [1.0], prefilled_s=2.1, slo=BATCH)
    for name, slo, is_overdue in (("batch", BATCH, False), ("interactive", INTERACTIVE, True)):
        seq = make_sequence(name, arrival_s=NOW - 3.0, slo=slo)
        step.inputs.running.admit(seq, 2)
        assert step.inputs.overdue is step.inputs.starved is is_overdue


def test_resumed_prompt_is_starved_by_its_own_target(make_step, make_sequence):
    step = make_step("unified", [1.0], prefilled_s=2.1, slo=BATCH)
    step.inputs.waiting.add(make_sequence("w", arrival_s=NOW - 3.0, slo=INTERACTIVE, streamed=1))
    assert step.inputs.starved


def test_step_keeps_the_tightest_time_between_tokens_of_its_decodes(make_step, make_sequence):
    step = make_step("unified", [0.5], waiting=[400])
    with_none = [pick.num_tokens for pick in step.plan().picks]
    assert step.inputs.decoding.min_tbt_s == inf
    for tbt_s in (0.09, 0.06, 0.2):
        seq = make_sequence(f"steady-{tbt_s}", slo=Slo(1.0, 0.1, tbt_s))
        step.inputs.running.admit(seq, 2)
        seq.emit(1, NOW)
        step.inputs.running.start_decoding(seq)
    assert step.inputs.decoding.min_tbt_s == 0.06
    steady = [pick.num_tokens for pick in step.plan().picks]
    assert with_none and steady < with_none
    step.inputs.running.remove(step.inputs.decoding["steady-0.06"], State.FINISHED)
    assert step.inputs.decoding.min_tbt_s == 0.09


@pytest.mark.parametrize("default", [INTERACTIVE, BATCH], ids=["interactive", "batch"])
def test_tokens_to_come_are_expected_within_the_targets_of_their_requests(
    make_scheduler, make_request, default
):
    seen = []

    def batch(inputs, admission):
        seen.append(inputs.inflow.coming_tokens(inputs.now))
        return Plan((), (), "looks at its inputs")

    scheduler = make_scheduler(replace(STRATEGIES["unified"], batch=batch), slo=default)
    scheduler.add_request(make_request("r", slo=BATCH, new=50), 0.0)
    scheduler.schedule(0.0)
    assert seen == [pytest.approx(150 * BATCH.ttft_s / WINDOW_S)]
