"""Conversations: their turns, and the contents of prompts."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.workload.arrivals import Arrival, Turn
from macroserve.workload.lengths import Constant, Uniform
from macroserve.workload.load import LoadLimits, SyntheticLoad, plan
from macroserve.workload.multi_turn import MAX_TURNS, SYNTAX, MultiTurn
from macroserve.workload.shared_prefix import SharedPrefix

CHATS = MultiTurn(5, 10.0)
LOAD = SyntheticLoad(2.0, 1.0, Uniform(10, 90), Uniform(5, 50), multi_turn=CHATS)
TURNS = st.lists(
    st.builds(Turn, st.floats(0, 100), st.integers(1, 500), st.integers(1, 500)), max_size=9
)


def test_spec_of_the_help_is_read() -> None:
    assert MultiTurn.parse(SYNTAX) == CHATS
    assert MultiTurn.parse("turns=1,think=0.5s") == MultiTurn(1, 0.5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "turns=5",
        "turns=5,think=10",
        "think=10s,turns=5",
        "turns=0,think=10s",
        "turns=-1,think=10s",
        "turns=5,think=-1s",
        "turns=5,think=nans",
        "turns=5,think=1e3s",
        "turns=5,think=86401s",
        f"turns={MAX_TURNS + 1},think=10s",
        f"turns={'9' * 5000},think=10s",
        "turns=5,think=10s,",
    ],
)
def test_spec_of_another_form_or_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        MultiTurn.parse(text)


def test_conversations_have_their_turns_and_share_no_block() -> None:
    found = list(islice(LOAD.arrivals(0), 50))
    assert {arrival.num_requests for arrival in found} == {5}
    assert len({arrival.block_ids for arrival in found}) == 50
    assert all(arrival.is_open for arrival in found)


def test_think_times_have_the_mean_that_was_asked_for() -> None:
    thinks_s = [turn.think_s for a in islice(LOAD.arrivals(0), 1000) for turn in a.turns]
    assert np.mean(thinks_s) == pytest.approx(10.0, rel=0.05)
    # As an exponential distribution has it.
    assert np.std(thinks_s) == pytest.approx(10.0, rel=0.1)


def test_conversations_leave_gaps_and_first_lengths_as_they_were() -> None:
    alone = replace(LOAD, multi_turn=None)
    for first, single in zip(
        islice(LOAD.arrivals(3), 50), islice(alone.arrivals(3), 50), strict=True
    ):
        assert first[:3] == single[:3]


def test_conversations_with_equal_seeds_are_equal_and_with_others_different() -> None:
    limits = LoadLimits(num_requests=20)
    assert plan(LOAD, limits, 1) == plan(LOAD, limits, 1)
    assert plan(LOAD, limits, 1) != plan(LOAD, limits, 2)


def test_turns_are_scaled_and_capped_as_first_requests_are() -> None:
    arrival = Arrival(0.0, 100, 50, turns=(Turn(3.0, 400, 20), Turn(4.0, 10, 90)))
    limits = LoadLimits(length_scale=0.5, max_prompt_tokens=120, max_output_tokens=30)
    assert limits.applied(arrival).turns == (Turn(3.0, 120, 10), Turn(4.0, 5, 30))


def test_next_turn_has_all_that_came_before_in_its_prompt() -> None:
    arrival = Arrival(1.0, 100, 50, turns=(Turn(3.0, 40, 20), Turn(4.0, 10, 90)))
    second = arrival.next_turn(7.0, 150)
    assert second == Arrival(10.0, 190, 20, turns=(Turn(4.0, 10, 90),))
    assert second.next_turn(12.0, 210) == Arrival(16.0, 220, 90)


@given(
    prompt=st.integers(1, 500), output=st.integers(1, 500), turns=TURNS, most=st.integers(1, 5000)
)
def test_conversation_within_a_length_is_the_longest_that_fits(
    prompt: int, output: int, turns: list[Turn], most: int
) -> None:
    arrival = Arrival(0.0, prompt, output, turns=tuple(turns))
    kept = arrival.within(most)
    num_kept = len(kept.turns)
    assert kept == arrival._replace(turns=arrival.turns[:num_kept])
    assert kept.num_new_tokens <= most or not kept.turns
    if num_kept < len(turns):
        longer = arrival._replace(turns=arrival.turns[: num_kept + 1])
        assert longer.num_new_tokens > most


def test_conversations_in_groups_share_their_groups_beginning_alone() -> None:
    load = replace(LOAD, shared=SharedPrefix(3, None, 1000))
    found = list(islice(load.arrivals(0), 60))
    assert {arrival.block_ids[0] for arrival in found} == {0, 1, 2}
    own = [arrival.block_ids[1] for arrival in found]
    assert len(set(own)) == 60 and min(own) > 2
    assert all(arrival.block_tokens == 1000 and arrival.is_open for arrival in found)
    # A beginning is sent once.
    assert all(turn.num_message_tokens <= 90 for arrival in found for turn in arrival.turns)


def test_conversations_with_prompts_of_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="omit prompts"):
        SyntheticLoad(1.0, 1.0, Constant(1), Constant(1), SharedPrefix(3, 2, 100), multi_turn=CHATS)
