"""The search for the highest rate that attains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.sim.goodput import PRECISION, goodput


@given(limit=st.floats(1.0, 90.0))
def test_it_finds_the_limit_from_below(limit: float) -> None:
    found = goodput(lambda rate: rate <= limit, 1.0, 100.0)
    assert found <= limit <= found * (1 + PRECISION)


def test_a_rate_that_fails_below_others_that_hold_ends_the_search() -> None:
    """Attainment that is better at 40 than at 8 requests per second is no goodput of 40."""
    found = goodput(lambda rate: rate <= 6 or 20 <= rate <= 40, 1.0, 100.0)
    assert found == pytest.approx(6, rel=PRECISION)


def test_none_at_all() -> None:
    assert goodput(lambda _: False, 1.0, 100.0) == 0.0


def test_no_rate_above_the_highest_is_tried() -> None:
    tried = []
    found = goodput(lambda rate: tried.append(rate) or True, 1.0, 10.0)
    assert max(tried) <= 10.0
    assert found == pytest.approx(10.0, rel=PRECISION)
