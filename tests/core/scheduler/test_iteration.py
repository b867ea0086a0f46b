"""An iteration has its decodes in turns, and the time and work that its plan takes."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.linear_latency import NOW, LinearLatency

from macroserve.core.batch import BatchResult
from macroserve.core.request import Slo
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.decoding import Decoding
from macroserve.core.scheduler.estimators import WINDOW_S
from macroserve.core.scheduler.iteration import (
    BEARABLE_SHARE,
    DUE_SHARE,
    LONGEST_REST,
    DecodeTurn,
    Plan,
    turn_of,
)
from macroserve.core.scheduler.sequence import State
from macroserve.core.strategies import STRATEGIES


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
    assert turn_of(found, latency, NOW, may_rest=True) == DecodeTurn.of_all(found)
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
    assert turn_of(found, LinearLatency(9.0), NOW, may_rest=True) == DecodeTurn.of_all(found)


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
