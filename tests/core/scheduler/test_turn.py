"""Responses ahead of a loose TPOT target rest while the tightest one does not bear all decodes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.linear_latency import NOW, LinearLatency

from macroserve.core.batch import BatchResult
from macroserve.core.request import Slo
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.decoding import Decoding
from macroserve.core.scheduler.iteration import Plan
from macroserve.core.scheduler.turn import BEARABLE_SHARE, DUE_SHARE, LONGEST_REST, Turn, turn_of
from macroserve.core.strategies import STRATEGIES

URGENT, PATIENT = Slo(1.0, 0.05), Slo(30.0, 0.5)
WITH_TBT = replace(PATIENT, tbt_s=2.0)
DUE_S, RESTED_S = DUE_SHARE * PATIENT.tpot_s, LONGEST_REST * PATIENT.tpot_s


@pytest.fixture(scope="module")
def decoding(make_sequence):
    """Return a function that builds decodes.

    responses: for each, its targets, the seconds by which it is ahead of its TPOT target, and the
        seconds since its last token.
    """

    def build(*responses):
        found = Decoding()
        for index, (slo, ahead_s, rested_s) in enumerate(responses):
            seq = make_sequence(f"d{index}", index, prompt=10, new=1000, slo=slo)
            seq.emit(2, NOW - rested_s)
            seq.tpot_budget_until_s = NOW + ahead_s
            found.add(seq)
        return found

    return build


def test_all_decode_while_the_tightest_target_bears_them(decoding):
    """A step of ten takes 25 ms, half of 50."""
    found = decoding((URGENT, 0.1, 0.0), *[(PATIENT, 9.0, 0.0)] * 9)
    latency = LinearLatency(0.005)
    assert turn_of(found, latency, NOW, may_rest=True) == Turn.of_all(found)
    more = decoding((URGENT, 0.1, 0.0), *[(PATIENT, 9.0, 0.0)] * 10)
    assert len(turn_of(more, latency, NOW, may_rest=True).ids) == 10
    assert len(turn_of(more, latency, NOW, may_rest=False).ids) == 11


@pytest.mark.parametrize(
    ("slo", "ahead_s", "rested_s", "decodes"),
    [
        (URGENT, 9.0, 0.0, True),
        (PATIENT, 9.0, 0.0, False),
        (PATIENT, DUE_S + 0.01, 0.0, False),
        (PATIENT, DUE_S, 0.0, True),
        (PATIENT, -9.0, 0.0, True),
        (PATIENT, 9.0, RESTED_S - 0.01, False),
        (PATIENT, 9.0, RESTED_S, True),
        (WITH_TBT, 9.0, 0.0, True),
    ],
)
def test_response_rests_if_it_is_ahead_of_a_looser_target(
    decoding, slo, ahead_s, rested_s, decodes
):
    """A step of the urgent response alone takes 52 of 50 ms."""
    found = decoding((URGENT, 0.0, 0.0), (slo, ahead_s, rested_s))
    turn = turn_of(found, LinearLatency(0.05), NOW, may_rest=True)
    assert ("d1" in turn.ids, "d0" in turn.ids) == (decodes, True)


def test_none_rests_beside_equal_targets(decoding):
    found = decoding(*[(PATIENT, 9.0, 0.0)] * 3)
    assert turn_of(found, LinearLatency(9.0), NOW, may_rest=True) == Turn.of_all(found)


def test_the_least_ahead_decode_as_far_as_the_tightest_target_bears_them(decoding):
    """A step of three takes 25 ms."""
    ahead_s = (4.0, 1.0, 3.0, 2.0)
    found = decoding((URGENT, 0.0, 0.0), *[(PATIENT, each_s, 0.0) for each_s in ahead_s])
    turn = turn_of(found, LinearLatency(0.019), NOW, may_rest=True)
    assert turn.ids == ("d0", "d2", "d4")


@pytest.mark.parametrize(("error_factor", "num"), [(1.0, 10), (2.0, 3)])
def test_fewer_decode_where_steps_take_longer_than_predicted(decoding, error_factor, num):
    found = decoding((URGENT, 0.0, 0.0), *[(PATIENT, 9.0, 0.0)] * 20)
    latency = LinearLatency(0.005, error_factor)
    assert len(turn_of(found, latency, NOW, may_rest=True).ids) == num


def test_turn_counts_the_cached_tokens_of_those_that_decode(decoding):
    found = decoding((URGENT, 0.0, 0.0), (PATIENT, 0.0, 0.0), (PATIENT, 9.0, 0.0))
    found.change(found["d1"], lambda: setattr(found["d1"], "cache", CacheKind.HIDDEN))
    turn = turn_of(found, LinearLatency(0.05), NOW, may_rest=True)
    assert (turn.ids, turn.num_tokens, turn.num_hidden_tokens) == (("d0", "d1"), 24, 12)


def test_response_that_rests_gets_no_token_in_place_of_one_that_left(
    make_scheduler, make_executor, make_request
):
    """The batch has as many decodes as there are when it ends."""
    decodes = ("a", "b")
    policy = replace(STRATEGIES["unified"], batch=lambda inputs, _: Plan((), decodes, "chosen"))
    scheduler = make_scheduler()
    executor = make_executor(scheduler, dict.fromkeys("abc", 50))
    for name in "abc":
        executor.add(make_request(name, 0.0, 20, 50))
    while len(scheduler.running.decoding) < 3:
        executor.step()
    scheduler.config = replace(scheduler.config, strategy=policy)
    emitted = {name: scheduler.sequences[name].num_emitted for name in "bc"}
    batch = scheduler.schedule(executor.now)
    scheduler.finish("a")
    scheduler.update(batch, BatchResult(0.1, decoded=1), executor.now + 0.1)
    now = {name: scheduler.running.decoding[name].num_emitted for name in "bc"}
    assert now == {"b": emitted["b"] + 1, "c": emitted["c"]}


@given(
    st.lists(
        st.tuples(
            st.sampled_from((URGENT, PATIENT, Slo(9.0, 0.2), WITH_TBT)),
            st.floats(-2.0, 20.0),
            st.floats(0.0, 3.0),
        ),
        min_size=1,
        max_size=30,
    ),
    st.floats(0.001, 0.1),
    st.floats(1.0, 2.0),
)
def test_turn_is_as_long_as_the_tightest_target_bears_or_has_only_what_cannot_rest(
    decoding, responses, batch_s, error_factor
):
    found, latency = decoding(*responses), LinearLatency(batch_s, error_factor)
    turn = turn_of(found, latency, NOW, may_rest=True)
    assert set(turn.ids) <= set(found)
    tightest_s = min(slo.tpot_s for slo, _, _ in responses)
    needed = {
        f"d{index}"
        for index, (slo, ahead_s, rested_s) in enumerate(responses)
        if slo.tpot_s == tightest_s
        or slo.tbt_s is not None
        or NOW + ahead_s - NOW <= DUE_SHARE * slo.tpot_s
        or NOW - (NOW - rested_s) >= LONGEST_REST * slo.tpot_s
    }
    assert needed <= set(turn.ids)
    if needed != set(turn.ids):
        bearable_s = BEARABLE_SHARE * tightest_s
        assert error_factor * turn.step_s(latency, 0.0) <= bearable_s + 1e-9
