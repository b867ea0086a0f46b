"""A drain has a time budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.scaling.fleet import MAX_BUDGET_S, MIN_BUDGET_S, drain_budget_s


@pytest.mark.parametrize(
    ("remaining_tokens", "num_running", "tpot_s", "budget_s"),
    [
        (0, 0, 0.1, MIN_BUDGET_S),
        (100, 0, 0.1, MIN_BUDGET_S + 40),  # all of it waits
        (1000, 10, 0.1, MIN_BUDGET_S + 40),
        (1000, 1, 0.1, MIN_BUDGET_S + 400),
        (10**6, 1, 0.1, MAX_BUDGET_S),
    ],
)
def test_drain_budget_follows_the_remaining_tokens(
    remaining_tokens: int, num_running: int, tpot_s: float, budget_s: float
) -> None:
    assert drain_budget_s(remaining_tokens, num_running, tpot_s) == pytest.approx(budget_s)


@given(st.integers(0, 10**9), st.integers(0, 10**4), st.floats(1e-3, 10))
def test_drain_budget_is_bounded_and_above_the_mean_request(
    remaining_tokens: int, num_running: int, tpot_s: float
) -> None:
    budget_s = drain_budget_s(remaining_tokens, num_running, tpot_s)
    assert MIN_BUDGET_S <= budget_s <= MAX_BUDGET_S
    mean_s = remaining_tokens / max(1, num_running) * tpot_s
    assert budget_s > mean_s or budget_s == MAX_BUDGET_S
