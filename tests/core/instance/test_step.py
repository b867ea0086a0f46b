"""What one iteration can choose from: whom triage gives up, and how much memory is reserved."""

import pytest
from support.linear_latency import NOW


@pytest.mark.parametrize(
    ("num_waiting", "begun", "given_up"),
    [
        (9, [], 0),  # each costs a little more than 0.1 s, and all are due in 1 s
        (12, [], 3),
        (12, [500], 4),  # the begun one goes before them
    ],
)
def test_prompts_alike_are_given_up_one_by_one(make_step, num_waiting, begun, given_up):
    step = make_step("unified", waiting=[50] * num_waiting, begun=begun, waited_s=0.0)
    assert len(step.hopeless) == given_up


def test_the_late_are_not_triaged(make_step):
    step = make_step("unified", waiting=[50] * 5, waited_s=1.1)
    assert step.hopeless == set()


@pytest.mark.parametrize(
    ("exact_kv", "expected"),
    [
        # A prompt of 100 and the block of its next token, or 115 more for a response of 100.
        (False, [8, 2]),
        (True, [14, 8]),
    ],
)
def test_what_is_reserved(make_step, exact_kv, expected):
    step = make_step(
        "unified", waiting=[100, 10], changes={"exact_kv": exact_kv}, lengths=[100], new=400
    )
    assert [pick.num_blocks for pick in step.pick(512)] == expected


@pytest.mark.parametrize("exact_kv", [False, True])
def test_no_more_is_reserved_than_the_response_can_take(make_step, exact_kv):
    step = make_step(
        "unified", waiting=[100, 10], changes={"exact_kv": exact_kv}, lengths=[100], new=3
    )
    assert [pick.num_blocks for pick in step.pick(512)] == [7, 1]


def test_a_preempted_response_reserves_what_is_left_of_it(make_step, make_sequence):
    step = make_step("unified", lengths=[100])
    seq = make_sequence("r", prompt=100, new=400)
    seq.emit(60, NOW)
    seq.forget_cache()
    step.waiting.add(seq)
    # 160 tokens, and 46 for the 40 that it is expected to add.
    assert [pick.num_blocks for pick in step.pick(512)] == [13]
