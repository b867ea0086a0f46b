"""A decision changes the cells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.scaling.decisions import (
    Add,
    Cell,
    Decision,
    Merge,
    Remove,
    SetPool,
    Split,
    apply,
    describe,
    in_order,
)
from macroserve.core.status import CellView, Pool

A = Cell("cell-0", ("a", "b", "c"), ("b",))
B = Cell("cell-1", ("x", "y"), ("x",))


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (Add("cell-1", "z", Pool.LP, ""), [A, Cell("cell-1", ("x", "y", "z"), ("x",))]),
        (Add("cell-1", "z", Pool.HP, ""), [A, Cell("cell-1", ("x", "y", "z"), ("x", "z"))]),
        (Add("cell-2", "z", Pool.LP, ""), [A, B, Cell("cell-2", ("z",))]),
        (Remove("cell-0", "b", ""), [Cell("cell-0", ("a", "c")), B]),
        (
            Split("cell-0", "cell-2", ("b", "c"), ""),
            [Cell("cell-0", ("a",)), B, Cell("cell-2", ("b", "c"), ("b",))],
        ),
        (
            Split("cell-0", "cell-1", ("b", "c"), ""),
            [Cell("cell-0", ("a",)), Cell("cell-1", ("x", "y", "b", "c"), ("x", "b"))],
        ),
        (Merge("cell-1", "cell-0", ""), [Cell("cell-0", ("a", "b", "c", "x", "y"), ("b", "x"))]),
        (SetPool("a", Pool.HP, ""), [Cell("cell-0", ("a", "b", "c"), ("b", "a")), B]),
        (SetPool("x", Pool.LP, ""), [A, Cell("cell-1", ("x", "y"))]),
        (SetPool("x", Pool.HP, ""), [A, B]),
    ],
)
def test_decision_applied_to_cells_gives_the_listed_cells(
    decision: Decision, expected: list[Cell]
) -> None:
    assert apply([B, A], decision) == tuple(expected)


@pytest.mark.parametrize(
    "decision",
    [
        Add("cell-1", "x", Pool.LP, ""),
        Remove("cell-0", "x", ""),
        Split("cell-0", "cell-2", ("x",), ""),
        Split("cell-0", "cell-2", ("a", "b", "c"), ""),
        Split("cell-0", "cell-0", ("a",), ""),
    ],
)
def test_decision_that_does_not_fit_the_cells_asserts(decision: Decision) -> None:
    with pytest.raises(AssertionError):
        apply([A, B], decision)


@given(st.sets(st.sampled_from(A.instances), min_size=1, max_size=2))
def test_split_then_merge_restores_the_cells(moved: set[str]) -> None:
    split = apply([A], Split("cell-0", "cell-1", tuple(moved), ""))
    (merged,) = apply(split, Merge("cell-1", "cell-0", ""))
    assert merged.name == A.name
    assert set(merged.instances) == set(A.instances)
    assert set(merged.high_priority) == set(A.high_priority)


def test_cells_in_order_are_sorted_by_number() -> None:
    cells = [Cell("cell-10"), Cell("cell-2"), Cell("cell-0")]
    assert [cell.name for cell in in_order(cells)] == ["cell-0", "cell-2", "cell-10"]


def test_cell_from_a_view_has_its_members() -> None:
    assert Cell.of(CellView("cell-0", ("a", "b", "c"), ("b",), num_running=9)) == A


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (Add("cell-0", "z", Pool.LP, "r"), "Add z (LP) to cell-0"),
        (Remove("cell-0", "b", "r"), "Remove b from cell-0"),
        (Split("cell-0", "cell-2", ("b", "c"), "r"), "Split cell-0: b, c to cell-2"),
        (Merge("cell-1", "cell-0", "r"), "Merge cell-1 into cell-0"),
        (SetPool("a", Pool.HP, "r"), "Move a to the HP pool"),
    ],
)
def test_decision_description_names_its_change(decision: Decision, expected: str) -> None:
    assert describe(decision) == expected
