"""A sequence has states and a clock of saved TPOT."""

from math import inf

import pytest

from macroserve.core.request import Slo
from macroserve.core.scheduler.sequence import IllegalMoveError, State

LEGAL = {
    (State.WAITING, State.PREFILLING),
    (State.WAITING, State.FINISHED),
    (State.PREFILLING, State.LOADING),
    (State.LOADING, State.PREFILLING),
    (State.LOADING, State.FINISHED),
    (State.PREFILLING, State.DECODING),
    (State.PREFILLING, State.PAUSED),
    (State.PREFILLING, State.WAITING),
    (State.PREFILLING, State.FINISHED),
    (State.DECODING, State.PAUSED),
    (State.DECODING, State.WAITING),
    (State.DECODING, State.ENDING),
    (State.DECODING, State.FINISHED),
    (State.ENDING, State.FINISHED),
    (State.PAUSED, State.DECODING),
    (State.PAUSED, State.ENDING),
    (State.PAUSED, State.WAITING),
    (State.PAUSED, State.FINISHED),
}


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_sequence_moves_only_as_its_state_allows(make_sequence, before, after):
    seq = make_sequence()
    seq.state = before
    if (before, after) in LEGAL:
        seq.move(after)
        assert seq.state is after
    else:
        with pytest.raises(IllegalMoveError, match="cannot go"):
            seq.move(after)
        assert seq.state is before


def test_sequence_saves_a_tpot_with_each_token_after_the_first(make_sequence):
    seq = make_sequence(slo=Slo(1.0, 0.1))
    seq.emit(1, now=5.0)
    assert seq.first_token_s == 5.0 and seq.tpot_budget_until_s == pytest.approx(5.0)
    seq.emit(1, now=5.05)
    seq.emit(2, now=5.3)
    assert seq.tpot_budget_until_s == pytest.approx(5.3)
    assert (seq.num_emitted, seq.num_tokens) == (4, 104)


@pytest.mark.parametrize(("first_token_s", "patience_s"), [(None, 1.0), (0.9, 0.1), (1.1, -inf)])
def test_sequence_wait_starts_at_arrival_then_at_each_token(
    make_sequence, first_token_s, patience_s
):
    seq = make_sequence(slo=Slo(1.0, 0.1))
    if first_token_s is not None:
        seq.emit(1, now=seq.arrival_s + first_token_s)
    assert seq.patience_s == pytest.approx(patience_s)


def test_sequence_continued_from_elsewhere_waits_for_the_next_token(make_sequence):
    assert make_sequence(slo=Slo(1.0, 0.1), streamed=3).patience_s == 0.1


def test_sequence_with_a_target_for_each_gap_waits_for_that_between_tokens(make_sequence):
    slo = Slo(1.0, 0.1, tbt_s=0.4)
    assert make_sequence(slo=slo, streamed=3).patience_s == 0.4
    seq = make_sequence(slo=slo)
    seq.emit(1, now=seq.arrival_s + 0.9)
    assert seq.patience_s == 0.4
    seq.correct_first_token(seq.arrival_s + 0.8)
    assert seq.patience_s == 0.4


def test_sequence_without_its_cache_recomputes_up_to_the_last_token(make_sequence):
    seq = make_sequence(prompt=100)
    seq.num_computed, seq.num_slots = 100, 112
    seq.emit(3, now=1.0)
    seq.forget_cache()
    assert (seq.num_prompt, seq.num_to_prefill, seq.num_slots) == (103, 103, 0)


@pytest.mark.parametrize(
    ("first_s", "tokens", "end_s", "streamed", "attained"),
    [
        (0.9, 1, 0.9, 0, True),
        (1.1, 1, 1.1, 0, False),  # TTFT missed
        (0.5, 11, 1.5, 0, True),  # TPOT met exactly
        (0.5, 11, 1.6, 0, False),  # TPOT missed
        (9.0, 11, 10.0, 5, True),  # its first token came from another instance
        (9.0, 11, 10.2, 5, False),
        (0.5, 0, 0.5, 0, False),  # ended without a token
    ],
)
def test_sequence_attainment_is_as_seen_by_the_reader(
    make_sequence, first_s, tokens, end_s, streamed, attained
):
    seq = make_sequence(slo=Slo(1.0, 0.1), streamed=streamed)
    if tokens:
        seq.emit(1, first_s)
        seq.emit(tokens - 1, end_s)
    assert seq.attained(end_s) is attained


@pytest.mark.parametrize(("num_slow", "attained"), [(1, True), (2, False)])
def test_sequence_with_one_slow_gap_in_a_hundred_attains(make_sequence, num_slow, attained):
    seq = make_sequence(slo=Slo(1.0, 0.1, 0.2))
    now = 0.5
    seq.emit(1, now)
    for index in range(100):
        now += 0.3 if index < num_slow else 0.05
        seq.emit(1, now)
    assert seq.num_slow == num_slow
    assert seq.attained(now) is attained
