"""The ratio determines the number of high-priority instances and the changes of pools."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.scaling.mitosis import high_priority_count, priority_changes
from macroserve.core.status import Pool


@pytest.mark.parametrize(
    ("num_instances", "ratio", "expected"),
    [
        (0, 0.33, 0),
        (1, 0.33, 0),
        (1, 1.0, 0),
        (2, 0.33, 1),
        (3, 0.33, 1),
        (3, 1 / 3, 1),
        (4, 0.33, 1),
        (6, 0.33, 2),
        (16, 0.33, 5),
        (3, 0.5, 2),
        (5, 0.5, 3),
        (3, 0.0, 0),
        (3, 1.0, 2),
    ],
)
def test_high_priority_count_is_the_rounded_share(
    num_instances: int, ratio: float, expected: int
) -> None:
    assert high_priority_count(num_instances, ratio) == expected


@pytest.mark.parametrize("ratio", [-0.01, 1.01, float("nan")])
def test_high_priority_ratio_outside_0_to_1_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="must be 0 to 1"):
        high_priority_count(3, ratio)


@given(st.integers(0, 200), st.floats(0, 1))
def test_high_priority_count_grows_by_at_most_one_per_instance(
    num_instances: int, ratio: float
) -> None:
    now = high_priority_count(num_instances, ratio)
    then = high_priority_count(num_instances + 1, ratio)
    assert 0 <= now <= max(0, num_instances - 1)
    assert now <= then <= now + 1


WORK = {"a": 5, "b": 1, "c": 3, "d": 2}


@pytest.mark.parametrize(
    ("high", "count", "expected"),
    [
        ("b", 1, []),
        ("", 1, [("b", Pool.HP)]),
        ("b", 3, [("d", Pool.HP), ("c", Pool.HP)]),
        ("bac", 1, [("a", Pool.LP), ("c", Pool.LP)]),
        ("b", 0, [("b", Pool.LP)]),
    ],
)
def test_priority_changes_follow_the_work(
    high: str, count: int, expected: list[tuple[str, Pool]]
) -> None:
    assert priority_changes("abcd", high, count, WORK) == tuple(expected)


def test_priority_changes_with_equal_work_follow_the_order() -> None:
    assert priority_changes("abc", "", 2, {"a": 1}) == (("b", Pool.HP), ("c", Pool.HP))
