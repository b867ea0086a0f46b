"""Responses form groups by length; tasks are ordered by deadline, memory and length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.request import Slo
from macroserve.core.scheduler.responses import (
    ClosestFit,
    ResponseGroup,
    is_overdue,
    jct_target_s,
    place,
)

queues = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), max_size=12)


@given(queues)
def test_groups_hold_each_response_once_by_length_in_order(queue):
    queue = [(index, *each) for index, each in enumerate(queue)]
    groups = ResponseGroup.of(queue, lambda seq: seq[1], lambda seq: seq[2])
    assert sorted(seq for group in groups for seq in group.members) == queue
    for group in groups:
        assert len({seq[1] for seq in group.members}) == 1
        assert list(group.members) == sorted(group.members)
        assert group.num_blocks == tuple(seq[2] for seq in group.members)
    assert len({group.members[0][1] for group in groups}) == len(groups)
    assert [group.members[0] for group in groups] == sorted(group.members[0] for group in groups)


@given(st.lists(st.integers(0, 5), max_size=8), st.integers(-2, 30))
def test_group_is_split_to_fit_the_free_blocks(num_blocks, num_free):
    group = ResponseGroup(tuple(range(len(num_blocks))), tuple(num_blocks))
    first, rest = group.split(num_free)
    assert first.members + rest.members == group.members
    assert first.num_blocks + rest.num_blocks == group.num_blocks
    assert not first.members or sum(first.num_blocks) <= num_free
    if rest.members:
        assert sum(first.num_blocks) + rest.num_blocks[0] > num_free


@pytest.fixture
def make(make_sequence):
    def build(ordinal=0, *, arrival_s=0.0, ttft_s=1.0, tpot_s=0.1, predicted=40):
        slo = Slo(ttft_s, tpot_s)
        return make_sequence("s", ordinal, arrival_s=arrival_s, slo=slo, predicted=predicted)

    return build


def test_jct_target_is_that_of_the_prompt_and_of_each_expected_token(make):
    """The paper's is SLO-scale x (t_p + t_g x l_g), section 4.1."""
    assert jct_target_s(make(ttft_s=1.0, tpot_s=0.1, predicted=40)) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("first", "second", "case"),
    [
        # seconds left of 5, held tokens, length
        ((0.1, 0, 1), (0.3, 999, 999), "the nearer range of deadlines"),
        ((0.4, 0, 1), (0.6, 999, 999), "the nearer range of deadlines"),
        ((1.9, 0, 1), (2.1, 999, 999), "the nearer range of deadlines"),
        ((4.9, 300, 1), (2.1, 100, 999), "more memory, as both are in time"),
        ((-4.9, 300, 1), (0.1, 100, 999), "more memory, as both are about to be late"),
        ((-5.1, 0, 1), (-4.9, 999, 999), "overdue"),
        ((1.0, 128, 1), (1.0, 127, 999), "the higher range of memory"),
        ((1.0, 127, 20), (1.0, 0, 19), "longer, with memory of one range"),
        ((0.6, 130, 20), (1.9, 250, 19), "longer, with memory of one range"),
    ],
)
def test_place_is_by_deadline_then_memory_then_length(make, first, second, case):
    places = []
    for ordinal, (left_s, held, length) in enumerate((second, first)):
        places.append(place(make(ordinal), held, length, now=5.0 - left_s))
    assert places[1] < places[0], case


def test_place_of_equal_tasks_is_by_arrival(make):
    assert place(make(0), 100, 20, 1.0) < place(make(1), 100, 20, 1.0)


def test_task_is_overdue_after_twice_its_target(make):
    seq = make(arrival_s=3.0)
    assert not is_overdue(seq, 13.0)
    assert is_overdue(seq, 13.1)


@given(st.lists(st.integers(0, 20), max_size=12), st.lists(st.integers(-1, 22), max_size=20))
def test_closest_fit_is_the_longest_of_at_most_the_limit(sizes, limits):
    fit = ClosestFit([(size, (index, size)) for index, size in enumerate(sizes)])
    left = list(enumerate(sizes))
    for limit in limits:
        fitting = [(-size, index) for index, size in left if size <= limit]
        expected = (min(fitting)[1], -min(fitting)[0]) if fitting else None
        assert fit.take(limit) == expected
        if expected:
            left.remove(expected)
