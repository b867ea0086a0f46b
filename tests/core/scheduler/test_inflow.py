"""The inflow is the recent rate of arrivals."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.scheduler.estimators import TARGETS_S, WINDOW_S, Inflow


def test_inflow_of_a_steady_stream_approaches_its_rate():
    inflow = Inflow()
    for index in range(2000):
        inflow.add(50, 1.0, 0.1 * index)
    assert inflow.coming_tokens(200.0) == pytest.approx(500.0, rel=0.02)


def test_inflow_without_arrivals_fades():
    inflow = Inflow()
    assert inflow.coming_tokens(5.0) == 0.0
    inflow.add(300, 1.0, 5.0)
    assert inflow.coming_tokens(5.0) == pytest.approx(300 / WINDOW_S)
    assert inflow.coming_tokens(5.0 + 10 * WINDOW_S) < 0.001


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 60)), min_size=1))
def test_inflow_of_any_stream_is_at_most_all_tokens_per_window(stream):
    inflow, now = Inflow(), 0.0
    for num_tokens, gap_s in stream:
        now += gap_s
        inflow.add(num_tokens, 1.0, now)
    total = sum(num_tokens for num_tokens, _ in stream)
    assert 0 < inflow.coming_tokens(now) <= total / WINDOW_S * (1 + 1e-9)


@given(
    st.lists(st.tuples(st.sampled_from([0.5, 1.0, 5.0, 30.0]), st.floats(0, 40))),
    st.floats(0, 80),
)
def test_inflow_tells_the_tightest_target_of_the_last_minute(stream, later_s):
    inflow, now, arrived = Inflow(), 0.0, []
    for ttft_s, gap_s in stream:
        now += gap_s
        inflow.add(100, ttft_s, now)
        arrived.append((ttft_s, now))
    now += later_s
    recent = [ttft_s for ttft_s, at_s in arrived if at_s >= now - TARGETS_S]
    assert inflow.min_ttft_s(now) == min(recent, default=inf)


def test_inflow_of_two_classes_counts_each_for_its_own_target():
    inflow = Inflow()
    inflow.add(300, 1.0, 5.0)
    inflow.add(300, 20.0, 5.0)
    assert inflow.coming_tokens(5.0) == pytest.approx(300 * (1.0 + 20.0) / WINDOW_S)
