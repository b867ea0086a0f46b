"""Ascendra's LP batches keep the budgets of Algorithm 1, and its HP batches put prefills first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.linear_latency import LinearLatency

from macroserve.core.batch import BatchKind
from macroserve.core.request import Slo
from macroserve.core.status import Pool

LOOSE = Slo(1.0, 10.0)
"""Targets that bound no batch."""


def test_lp_batch_puts_decodes_first(compose):
    assert compose("ascendra", [0.0] * 12, [600], pool=Pool.LP, slo=LOOSE)[:2] == (
        BatchKind.MIXED,
        [("w0", 500)],
    )


def test_lp_batch_has_at_most_128_sequences(compose):
    fields = {"pool": Pool.LP, "max_num_seqs": 256, "slo": LOOSE}
    assert compose("ascendra", [0.0] * 127, [5, 5], **fields)[1] == [("w0", 5)]
    assert compose("ascendra", [0.0] * 128, [5], **fields)[1] == []


TIMES = {
    "the mean's target": ({"slo": Slo(1.0, 0.1)}, 76),
    "a longer target": ({"slo": Slo(1.0, 0.2)}, 176),
    "each gap's target": ({"slo": Slo(1.0, 0.2, 0.07)}, 46),
    "a loose one for each gap": ({"slo": Slo(1.0, 0.1, 0.9)}, 76),
    "steps that take longer": ({"latency": LinearLatency(0.02, 1.25)}, 56),
    "just enough": ({"slo": Slo(1.0, 0.04)}, 16),
    "too little": ({"slo": Slo(1.0, 0.039)}, 0),
    "none": ({"slo": Slo(1.0, 0.01)}, 0),
    "prompts are starved": (
        {"slo": Slo(1.0, 0.01), "waited_s": 2.1, "prefilled_s": 2.1},
        510,
    ),
    "prompts wait, but some were prefilled": (
        {"slo": Slo(1.0, 0.01), "waited_s": 2.1, "prefilled_s": 1.9},
        0,
    ),
}


@pytest.mark.parametrize("case", TIMES)
def test_lp_batch_prefills_as_much_as_its_decodes_leave_time_for(compose, case):
    """A batch takes 20 ms, two decodes 4 ms, and each token of a prompt one."""
    fields, expected = TIMES[case]
    _, picks, decodes, _ = compose("ascendra", [0.0] * 2, [600], pool=Pool.LP, **fields)
    assert sum(num for _, num in picks) == expected
    assert decodes == ["d0", "d1"]


def test_lp_batch_without_time_for_prefills_says_that_slack_is_exhausted(make_step):
    fields = {"waiting": [600], "pool": Pool.LP}
    assert make_step("ascendra", [0.0], slo=Slo(1.0, 0.01), **fields).plan().slack_exhausted
    assert not make_step("ascendra", [0.0], slo=LOOSE, **fields).plan().slack_exhausted


@pytest.mark.parametrize("strategy", ["ascendra", "unified"])
@pytest.mark.parametrize(("num_seats", "exhausted"), [(2, False), (3, True)])
def test_slack_is_exhausted_only_if_a_prompt_finds_a_seat(
    make_step, strategy, num_seats, exhausted
):
    fields = {"pool": Pool.LP, "slo": Slo(1.0, 0.01), "max_num_seqs": num_seats}
    plan = make_step(strategy, [0.0] * 2, [600], **fields).plan()
    assert (plan.picks, plan.slack_exhausted) == ((), exhausted)


def test_lp_batch_of_drafted_tokens_has_the_time_of_all_that_come_out(make_step):
    """A step gives each decode two tokens, and verifies one more for each."""
    step = make_step("ascendra", [0.0] * 2, [600], pool=Pool.LP, slo=Slo(1.0, 0.1))
    speculation = step.inputs.decoding.speculation
    speculation.drafted, speculation.emitted = 1.0, 2.0
    assert sum(pick.num_tokens for pick in step.plan().picks) == 172


def test_lp_batch_without_decodes_has_no_limit_but_tokens(compose):
    fields = {"pool": Pool.LP, "slo": Slo(1.0, 0.001)}
    assert compose("ascendra", [], [600], **fields)[1] == [("w0", 512)]


@given(
    st.lists(st.integers(1, 400), max_size=8),
    st.integers(1, 12),
    st.floats(0.001, 1.0),
    st.none() | st.floats(0.001, 1.0),
)
def test_lp_batch_with_decodes_never_plans_more_than_their_target(
    make_step, prompts, num_decodes, tpot_s, tbt_s
):
    slo = Slo(1.0, tpot_s, tbt_s)
    step = make_step("ascendra", [0.0] * num_decodes, prompts, pool=Pool.LP, slo=slo)
    plan, inputs = step.plan(), step.inputs
    assert plan.decodes == tuple(inputs.decoding)
    planned_s = inputs.latency.predict(inputs.work(plan))
    assert not plan.picks or planned_s <= min(tpot_s, tbt_s or tpot_s) + 1e-6


def test_hp_batch_puts_prefills_first(compose):
    """The time between tokens does not bound it."""
    kind, picks, decodes, _ = compose("ascendra", [0.3, 0.1, 0.2], [510], pool=Pool.HP)
    assert (kind, picks) == (BatchKind.MIXED, [("w0", 510)])
    assert decodes == ["d1", "d2"], "those that saved least"
    kind, picks, decodes, _ = compose("ascendra", [0.3, 0.1], [600], pool=Pool.HP)
    assert (kind, picks, decodes) == (BatchKind.PREFILL, [("w0", 512)], [])
    assert len(compose("ascendra", [0.0] * 130, [5], max_num_seqs=256)[1]) == 1, "elastic"


@pytest.mark.parametrize(
    ("decodes", "left", "num_blocks", "admitted"),
    [
        (0, 998, 10, True),  # nothing runs: nothing is held back
        (1, 998, 2 + 8 + 1, True),  # a tenth of the pool, one block, stays free
        (1, 998, 2 + 8, False),
        (20, 998, 40 + 8 + 5, True),
        (20, 998, 40 + 8 + 4, False),
        # What is still expected takes two blocks, less than a tenth of the pool.
        (20, 1, 40 + 8 + 2, True),
        (20, 1, 40 + 8 + 1, False),
    ],
)
def test_hp_batch_holds_memory_back_by_the_lengths_still_expected(
    make_step, decodes, left, num_blocks, admitted
):
    """A prompt of 100 takes 8 blocks of 16 with its next one; each decode may grow by ``left``."""
    step = make_step("ascendra", [0.0] * decodes, [100], num_blocks=num_blocks, max_num_seqs=32)
    for seq in list(step.inputs.decoding.values()):
        step.inputs.decoding.expect(seq, seq.num_emitted + left)
    assert bool(step.plan().picks) is admitted


@pytest.mark.parametrize(
    ("strategy", "expected"), [("vllm", ["short", "long"]), ("ascendra", ["long", "short"])]
)
def test_longer_prompt_that_comes_a_little_later_is_more_urgent_to_ascendra(
    make_scheduler, make_request, strategy, expected
):
    """The prefill of the longer one takes 0.08 s more (section 3.3)."""
    scheduler = make_scheduler(strategy)
    scheduler.add_request(make_request("short", 0.0, 20), 0.2)
    scheduler.add_request(make_request("long", 0.05, 400), 0.2)
    assert [p.request_id for p in scheduler.schedule(0.2).prefills] == expected
