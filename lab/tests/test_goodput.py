"""The search for the highest rate that attains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve_lab.goodput import GROWTH, PRECISION, goodput


@given(limit=st.floats(1.0, 90.0))
def test_goodput_of_a_single_limit_is_just_below_it(limit: float) -> None:
    found = goodput(lambda rate: rate <= limit, 1.0, 100.0)
    assert found <= limit <= found * (1 + PRECISION)


@pytest.mark.parametrize(("held", "found"), [(3.0, 3.0), (6.0, 40), (0.0, 0.0)])
def test_goodput_with_few_failing_rates_below_is_the_highest_that_holds(
    held: float, found: float
) -> None:
    rate = goodput(lambda rate: rate <= held or 13 <= rate <= 40, 1.0, 100.0)
    assert rate == pytest.approx(found, rel=PRECISION)


def test_goodput_with_a_failing_lowest_rate_is_the_highest_that_holds() -> None:
    assert goodput(lambda rate: 2 <= rate <= 9, 1.0, 100.0) == pytest.approx(9, rel=PRECISION)


@pytest.mark.parametrize("patience", [1, 3])
def test_goodput_search_ends_after_as_many_failures_as_its_patience(patience: int) -> None:
    tried = []
    goodput(lambda rate: tried.append(rate) or rate <= 2.0, 1.0, 1e9, patience)
    assert sum(rate > 2.0 * GROWTH for rate in tried) == patience - 1


def test_goodput_search_with_alternating_failures_goes_on() -> None:
    """Alternate rates fail: in all more than the patience, but never two in a row."""
    tried: list[float] = []

    def attains(rate: float) -> bool:
        tried.append(rate)
        return len(tried) % 2 == 0

    assert goodput(attains, 1.0, 100.0, patience=2) > 100.0 / GROWTH**2


def test_goodput_with_no_rate_that_holds_is_zero() -> None:
    assert goodput(lambda _: False, 1.0, 100.0) == 0.0


def test_goodput_search_tries_no_rate_above_the_highest() -> None:
    tried = []
    found = goodput(lambda rate: tried.append(rate) or True, 1.0, 10.0)
    assert max(tried) <= 10.0
    assert found == pytest.approx(10.0, rel=PRECISION)
