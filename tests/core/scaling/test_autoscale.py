from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.autoscaling_loop import (
    ALERT,
    ALERTS_MISSING,
    LIMITS,
    ROUND_S,
    UNKNOWN,
    Loop,
    first,
    need,
    signals,
    spare,
)

from macroserve.core.scaling.autoscale import (
    GAP_S,
    PATIENCE_S,
    REBOUND_S,
    REMEMBERED_S,
    SETTLE_S,
    START_S,
    Limits,
    TargetChange,
)

# -- one round


@pytest.mark.parametrize(
    ("given", "target", "able", "says"),
    [
        pytest.param(signals(), 4, True, "4 instances are needed", id="just enough"),
        pytest.param(signals(6), 6, True, "10 requests/s", id="forecast"),
        pytest.param(signals(40), 8, True, "need", id="at most doubled"),
        pytest.param(signals(alert=ALERT), 5, True, ALERT, id="alert alone adds one"),
        pytest.param(signals(7, alert=ALERT), 7, True, ALERT, id="alert and forecast"),
        pytest.param(signals(alert=ALERT, need=None), 5, True, ALERT, id="alert, not simulated"),
        pytest.param(signals(need=None), 4, True, "not been simulated yet", id="not simulated"),
        pytest.param(signals(4, 2), 4, False, "300 s", id="fewer would do: wait"),
        pytest.param(
            signals(need=None, idle=True), 4, False, "no recent requests", id="idle: wait"
        ),
        pytest.param(
            signals(need=None, idle=True, alert=ALERT), 4, False, "", id="alert without load"
        ),
        pytest.param(
            signals(alert=ALERT, need=need(4, helps=False)), 4, True, "not help", id="no help"
        ),
        pytest.param(
            signals(alert=ALERT, need=need(8, helps=False)), 4, True, "not help", id="no help at 8"
        ),
        pytest.param(signals(4, 2, below_target=True), 4, True, "Attainment", id="below target"),
        pytest.param(
            signals(4, 2, alerts_missing=ALERTS_MISSING),
            4,
            False,
            ALERTS_MISSING,
            id="alerts missing",
        ),
        pytest.param(
            signals(6, alerts_missing=ALERTS_MISSING),
            6,
            True,
            "requests/s",
            id="alerts missing, but more needed",
        ),
        pytest.param(signals(need=None, unknown=UNKNOWN), 4, False, UNKNOWN, id="unknown"),
        pytest.param(
            signals(9, 9, alert=ALERT, unknown=UNKNOWN), 4, False, UNKNOWN, id="alert, unknown load"
        ),
    ],
)
def test_autoscale_decision_of_a_case_is_as_listed(given, target, able, says):
    decision = first(given)
    assert (decision.target, decision.able) == (target, able)
    assert says in decision.reason


@pytest.mark.parametrize(
    ("target", "given", "expected"),
    [
        (20, signals(unknown=UNKNOWN), 16),
        (2, signals(alerts_missing=ALERTS_MISSING), 3),
        (16, signals(30, alert=ALERT), 16),
        (3, signals(3, 1), 3),
        (5, signals(5, 1), 3),
        (10, signals(17), 16),
    ],
)
def test_autoscale_applies_bounds_at_once(target, given, expected):
    limits = Limits(least=3, most=16, up_s=0.0, down_s=0.0)
    assert first(given, target=target, limits=limits).target == expected


def test_autoscale_alert_at_the_maximum_tells_so():
    decision = first(signals(alert=ALERT), target=16)
    assert (decision.target, decision.able) == (16, False)
    assert "the maximum" in decision.reason


def test_autoscale_at_the_minimum_reports_unknown_load():
    assert first(signals(1, alerts_missing=ALERTS_MISSING), target=1).reason.startswith(
        ALERTS_MISSING
    )
    assert first(signals(1), target=1).reason == "1 is the minimum."


def test_autoscale_reason_with_one_instance_is_singular():
    assert "1 instance is enough." in first(signals(2, 1), target=2).reason
    assert (
        "with 1 instance,"
        in first(signals(1, alert=ALERT, need=need(1, helps=False)), target=1).reason
    )


# -- down, after a window


def test_autoscale_down_waits_for_a_whole_window():
    loop = Loop()
    assert loop.run(spare(2), LIMITS.down_s - ROUND_S) == 4
    assert loop.run(spare(2), ROUND_S) == 2
    assert "has held for 300 s" in loop.decision.reason


def test_autoscale_down_uses_the_highest_recommendation_in_the_window():
    loop = Loop()
    loop.run(spare(2), 200)
    loop.run(spare(3), ROUND_S)
    loop.run(spare(1), 200)
    assert [target for _, target in loop.targets] == [4, 3]


def test_autoscale_window_restarts_when_all_instances_are_needed():
    loop = Loop()
    loop.run(spare(2), 280)
    loop.run(spare(4), ROUND_S)
    assert loop.run(spare(2), LIMITS.down_s - ROUND_S) == 4
    assert loop.run(spare(2), 2 * ROUND_S) == 2


def test_autoscale_with_uncertain_simulations_removes_one_per_window():
    loop = Loop(target=8)
    loop.run(lambda target: signals(need=need(target, 2, certain=False)), 1000)
    assert [target for _, target in loop.targets] == [8, 7, 6, 5]
    times = [at_s for at_s, _ in loop.targets]
    assert all(b - a >= LIMITS.down_s for a, b in pairwise(times))


@pytest.mark.parametrize(
    "interruption",
    [
        pytest.param(signals(4, 2, alert=ALERT, need=need(4, 2, helps=False)), id="alert"),
        pytest.param(signals(4, 2, below_target=True), id="below target"),
        pytest.param(signals(4, 2, alerts_missing=ALERTS_MISSING), id="alerts missing"),
        pytest.param(signals(need=None, unknown=UNKNOWN), id="unknown"),
        pytest.param(signals(need=None), id="not simulated"),
    ],
)
def test_autoscale_window_restarts_after_any_contrary_signal(interruption):
    loop = Loop()
    loop.run(spare(2), 290)
    loop.run(interruption, ROUND_S)
    assert loop.run(spare(2), LIMITS.down_s - ROUND_S) == 4
    assert loop.run(spare(2), 2 * ROUND_S) == 2


def test_autoscale_after_a_gap_removes_none():
    loop = Loop()
    loop.run(spare(2), 100)
    loop.now += LIMITS.down_s + GAP_S
    assert loop.run(spare(2), LIMITS.down_s - ROUND_S) == 4
    assert loop.run(spare(2), 2 * ROUND_S) == 2


@given(st.floats(1, 3000), st.integers(1, 4))
def test_autoscale_during_a_metrics_outage_holds_the_target(outage_s, survivors):
    loop = Loop()
    loop.run(spare(survivors), 250)
    assert loop.run(signals(need=None, unknown=UNKNOWN), outage_s) == 4
    assert loop.run(spare(survivors), LIMITS.down_s - ROUND_S) == 4


@given(st.floats(0, 290), st.integers(1, 4))
def test_autoscale_after_a_restart_waits_one_window_at_most(before_s, survivors):
    loop = Loop()
    loop.run(spare(survivors), before_s)
    loop.restart()
    assert loop.run(spare(survivors), LIMITS.down_s - ROUND_S) == 4
    assert loop.run(spare(survivors), 3 * ROUND_S) == survivors


def test_autoscale_with_a_zero_window_acts_at_once():
    assert first(signals(4, 2), limits=replace(LIMITS, down_s=0.0)).target == 2


# -- up, at once


def test_autoscale_up_waits_for_its_own_window():
    loop = Loop(limits=replace(LIMITS, up_s=30.0))
    assert loop.run(signals(8), 25) == 4
    assert not loop.decision.able
    loop.run(signals(6), ROUND_S)
    assert loop.run(signals(8), ROUND_S) == 6, "the lowest number in the window counts"


def test_autoscale_alert_that_persists_adds_one_per_settling_time():
    loop = Loop()
    loop.run(lambda target: signals(ready=target, alert=ALERT, need=None), SETTLE_S * 3)
    assert [target for _, target in loop.targets] == [4, 5, 6, 7]
    times = [at_s for at_s, _ in loop.targets[1:]]
    assert all(b - a >= SETTLE_S for a, b in pairwise(times))


@pytest.mark.parametrize(
    ("serves_after_s", "response_s", "adds_after_s"),
    [
        pytest.param(0.0, 0.0, SETTLE_S, id="at once"),
        pytest.param(100.0, 0.0, 100.0 + SETTLE_S, id="after its start"),
        pytest.param(100.0, 70.0, 170.0 + SETTLE_S, id="responses that began before it served"),
        pytest.param(1e9, 0.0, START_S + PATIENCE_S, id="never"),
    ],
)
def test_autoscale_alert_settles_after_the_added_instance_serves(
    serves_after_s, response_s, adds_after_s
):
    loop = Loop()
    start_s = loop.now + ROUND_S

    def given(target):
        ready = 5 if loop.now >= start_s + serves_after_s else 4
        return signals(ready=ready, alert=ALERT, need=None, response_s=response_s)

    loop.run(given, 400)
    times_s = [at_s for at_s, _ in loop.targets[1:]]
    assert times_s[0] == start_s
    assert times_s[1] - start_s == pytest.approx(adds_after_s, abs=2 * ROUND_S)


@pytest.mark.parametrize("start_s", [10.0, START_S, 300.0])
def test_autoscale_waits_a_limited_time_for_starting_instances(start_s):
    """A pod that never becomes ready must neither freeze scaling nor cause dozens of others."""
    loop = Loop()
    stuck = signals(ready=4, alert=ALERT, need=None, start_s=start_s)
    assert loop.run(stuck, start_s + PATIENCE_S) == 5
    assert loop.run(stuck, 2 * ROUND_S) == 6


def test_autoscale_alert_after_a_removal_acts_at_once():
    removed = TargetChange(9_999.0, 5, 4)
    assert first(signals(alert=ALERT), changes=[removed]).target == 5


def test_autoscale_alert_after_a_gap_acts_at_once_if_all_have_served_for_long():
    loop = Loop()
    loop.run(signals(5), ROUND_S)
    loop.run(signals(5, ready=5), SETTLE_S)
    loop.now += GAP_S
    loop.run(signals(5, ready=5), ROUND_S)
    assert loop.run(signals(alert=ALERT, ready=5, need=None), ROUND_S) == 6


def test_autoscale_after_a_restart_waits_for_the_settling_time_at_most():
    loop = Loop(changes=[TargetChange(9_980.0, 3, 4)])
    assert loop.run(signals(alert=ALERT), SETTLE_S) == 4
    assert loop.run(signals(alert=ALERT), 2 * ROUND_S) == 5


def test_autoscale_in_a_burst_doubles_until_enough():
    loop = Loop(target=2)
    loop.run(lambda target: signals(min(13, 2 * target), 1, ready=2), 20)
    assert [target for _, target in loop.targets] == [2, 4, 8, 13]


# -- no swinging


def test_autoscale_with_a_borderline_need_does_not_oscillate():
    """A noisy measure asks for 2, 1, 2, 1..."""
    loop = Loop(target=1)
    for _ in range(500):
        loop.run(lambda target: signals(target if target == 2 else 2, 2, ready=2), 20)
        loop.run(lambda target: signals(target, 1, ready=2), 20)
    assert [target for _, target in loop.targets] == [1, 2]


def test_autoscale_window_doubles_after_each_mistake():
    """Simulations keep recommending one instance, which is too few whenever it is tried."""
    loop = Loop(target=2)

    def given(target):
        fires = target == 1
        return signals(target, 1, ready=target, alert=ALERT if fires else None)

    loop.run(given, 6 * 3600)
    lowered = [at_s for at_s, target in loop.targets if target == 1]
    waits = [b - a for a, b in pairwise(lowered)]
    assert 2 * LIMITS.down_s <= waits[0] < waits[1] < waits[2]
    assert waits[1] >= 4 * LIMITS.down_s
    at_one = sum(
        later - at_s for (at_s, target), (later, _) in pairwise(loop.targets) if target == 1
    )
    assert at_one < 0.01 * 6 * 3600


def test_autoscale_mistakes_after_an_hour_are_forgotten():
    def mistakes(at_s):
        return [TargetChange(at_s, 5, 4), TargetChange(at_s + REBOUND_S, 4, 5)]

    recent, old = mistakes(9_000.0), mistakes(9_000.0 - REMEMBERED_S)
    for changes, factor in ((recent, 2), (old, 1)):
        loop = Loop(target=5, changes=changes)
        assert loop.run(spare(4), factor * LIMITS.down_s - ROUND_S) == 5
        assert loop.run(spare(4), 3 * ROUND_S) == 4


def test_autoscale_rise_long_after_a_removal_is_no_mistake():
    changes = [TargetChange(8_000.0, 5, 4), TargetChange(8_000.0 + REBOUND_S + 1, 4, 5)]
    loop = Loop(target=5, changes=changes)
    assert loop.run(spare(4), LIMITS.down_s + 2 * ROUND_S) == 4
