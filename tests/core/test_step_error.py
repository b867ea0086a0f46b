"""The step error is a quantile of seen over predicted time, in groups of batches."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.step_error import (
    FEWEST_GROUPS,
    GROUP_BATCHES,
    MAX_FACTOR,
    NUM_GROUPS,
    StepError,
)

ratios = st.floats(0.1, 10.0)


def observed(error: StepError, *groups: float) -> StepError:
    """Add groups of batches that all take the group's multiple of a predicted 50 ms."""
    for ratio in groups:
        for _ in range(GROUP_BATCHES):
            error.observe(0.05, 0.05 * ratio)
    return error


def test_step_error_before_enough_groups_is_one():
    error = observed(StepError(), *[1.5] * (FEWEST_GROUPS - 1))
    assert error.factor == 1.0
    assert observed(error, 1.5).factor == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("slow", "factor"), [(1, 1.0), (FEWEST_GROUPS // 10, 1.0), (FEWEST_GROUPS // 10 + 1, 1.5)]
)
def test_step_error_is_what_all_but_a_tenth_of_the_groups_keep(slow, factor):
    error = observed(StepError(), *[1.5] * slow, *[1.0] * (FEWEST_GROUPS - slow))
    assert error.factor == pytest.approx(factor)


def test_step_error_forgets_groups_outside_the_window():
    error = observed(StepError(), *[1.5] * NUM_GROUPS)
    assert observed(error, *[1.1] * (NUM_GROUPS // 2)).factor == pytest.approx(1.5)
    assert observed(error, *[1.1] * (NUM_GROUPS // 2)).factor == pytest.approx(1.1)


def test_step_error_of_errors_that_cancel_out_within_a_group_is_one():
    error = StepError()
    for _ in range(FEWEST_GROUPS * GROUP_BATCHES // 2):
        error.observe(0.05, 0.075)
        error.observe(0.05, 0.025)
    assert error.factor == pytest.approx(1.0)


def test_step_error_counts_a_stall_by_its_time():
    """A group with one batch of nine times its time takes half as long again."""
    error = StepError()
    for _ in range(FEWEST_GROUPS):
        error.observe(0.05, 0.45)
        for _ in range(GROUP_BATCHES - 1):
            error.observe(0.05, 0.05)
    assert error.factor == pytest.approx(1.5)


@given(st.lists(ratios, min_size=FEWEST_GROUPS, max_size=3 * NUM_GROUPS))
def test_step_error_is_kept_by_nine_in_ten_of_the_remembered_groups(groups):
    factor = observed(StepError(), *groups).factor
    assert 1.0 <= factor <= MAX_FACTOR
    latest = groups[-NUM_GROUPS:]
    num_above = sum(ratio > factor * (1 + 1e-9) for ratio in latest)
    if factor < MAX_FACTOR:
        assert num_above <= len(latest) / 10
    if factor > 1.0:
        assert sum(ratio >= factor * (1 - 1e-9) for ratio in latest) > len(latest) / 10


@given(st.lists(ratios, min_size=FEWEST_GROUPS, max_size=NUM_GROUPS), st.data())
def test_step_error_never_falls_when_a_group_takes_longer(groups, data):
    index = data.draw(st.integers(0, len(groups) - 1))
    longer = [*groups[:index], groups[index] * 1.5, *groups[index + 1 :]]
    assert observed(StepError(), *longer).factor >= observed(StepError(), *groups).factor


@pytest.mark.parametrize("times", [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (nan, 1.0), (1.0, inf)])
def test_step_error_ignores_times_that_are_not_positive_and_finite(times):
    error = observed(StepError(), *[1.2] * FEWEST_GROUPS)
    for _ in range(FEWEST_GROUPS * GROUP_BATCHES):
        error.observe(*times)
    assert error.factor == pytest.approx(1.2)
