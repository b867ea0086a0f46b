"""Mitosis follows the paper's figure step by step, and keeps invariants from any state to any
target."""

from collections import Counter

import pytest
from hypothesis import assume, given
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
)
from macroserve.core.scaling.mitosis import Bounds, high_priority_count, plan
from macroserve.core.status import Pool

FIGURE = Bounds(lower=3, upper=6)


def cells_of(*sizes: int) -> tuple[Cell, ...]:
    names = iter(range(1000))
    return tuple(
        Cell(f"cell-{i}", tuple(f"instance-{next(names)}" for _ in range(size)))
        for i, size in enumerate(sizes)
    )


def carried_out(cells: tuple[Cell, ...], decisions: tuple[Decision, ...]) -> tuple[Cell, ...]:
    for decision in decisions:
        cells = apply(cells, decision)
    return cells


def sizes(cells: tuple[Cell, ...]) -> list[int]:
    return [cell.size for cell in cells]


@pytest.mark.parametrize(
    ("target", "before", "kinds", "after"),
    [
        # Expansion (EcoServe, figure 7, steps 1 to 4).
        (1, [], [Add], [1]),
        (6, [5], [Add], [6]),
        (7, [6], [Add, Split], [4, 3]),
        (9, [4, 3], [Add, Add], [6, 3]),
        (10, [6, 3], [Add], [6, 4]),
        (13, [6, 6], [Add, Split], [4, 6, 3]),
        (15, [4, 6, 3], [Add, Add], [6, 6, 3]),
        # Contraction (steps 5 to 8).
        (11, [6, 6], [Remove], [6, 5]),
        (9, [6, 5], [Remove, Remove], [6, 3]),
        (7, [6, 3], [Remove, Remove], [4, 3]),
        (6, [4, 3], [Remove, Merge], [6]),
        (13, [6, 6, 3], [Remove, Remove], [6, 4, 3]),
        (12, [6, 4, 3], [Remove, Merge], [6, 6]),
        (2, [3], [Remove], [2]),
        (0, [1], [Remove], [0]),
        # Nothing to do.
        (0, [], [], []),
        (0, [0], [], [0]),
        (2, [2], [], [2]),
        (9, [6, 3], [], [6, 3]),
        (8, [4, 4], [], [4, 4]),
        # Found out of bounds.
        (4, [2, 2], [Merge], [4]),
        (6, [3, 3], [Merge], [6]),
        (3, [1, 1, 1], [Merge, Merge], [3]),
        (7, [7], [Split], [4, 3]),
        (20, [20], [Split, Split, Split], [5, 6, 6, 3]),
        (8, [6, 2], [Split], [5, 3]),
        (9, [6, 2], [Add], [6, 3]),
        (7, [6, 1], [Split], [4, 3]),
        (9, [8, 1], [Split], [6, 3]),
        (12, [11, 1], [Split], [6, 6]),
        (12, [9, 3], [Split], [6, 6]),
        (13, [6, 6, 1], [Split], [6, 4, 3]),
        (6, [6, 0], [Merge], [6]),
        (7, [6, 0], [Merge, Add, Split], [4, 3]),
        (6, [7], [Remove], [6]),
        (5, [3, 0, 2], [Merge, Merge], [5]),
        (8, [4, 2], [Add, Add], [5, 3]),
        (10, [7, 4], [Remove], [6, 4]),
        # Cells that will not fit into one any more stay two.
        (7, [3, 3], [Add], [4, 3]),
    ],
)
def test_mitosis_plan_of_a_case_is_as_listed(
    target: int, before: list[int], kinds: list[type[Decision]], after: list[int]
) -> None:
    cells = cells_of(*before)
    decisions = plan(cells, target, FIGURE)
    assert [type(decision) for decision in decisions] == kinds
    assert sizes(carried_out(cells, decisions)) == after


def test_mitosis_with_bounds_of_one_makes_a_cell_per_instance() -> None:
    cells = carried_out((), plan((), 3, Bounds(1, 1)))
    assert sizes(cells) == [1, 1, 1]
    assert sizes(carried_out(cells, plan(cells, 2, Bounds(1, 1)))) == [1, 1]


def test_mitosis_decisions_name_their_change_and_reason() -> None:
    cells = (Cell("cell-0", ("a", "b", "c", "d", "e", "f"), ("b", "e")),)
    assert plan(cells, 7, FIGURE, 0.33) == (
        Add("cell-0", "instance-0", Pool.LP, "6 of 7 desired instances exist."),
        Split(
            "cell-0",
            "cell-1",
            ("b", "a", "c"),
            "cell-0 has 7 instances, more than 6, so 3 of them form cell-1.",
        ),
    )


def test_mitosis_names_are_the_lowest_unused() -> None:
    cells = (Cell("cell-1", ("instance-0", "instance-2", "x", "y", "z", "w")),)
    decisions = plan(cells, 8, FIGURE, leaving={"instance-3"})
    assert [c.instance for c in decisions if isinstance(c, Add)] == ["instance-1", "instance-4"]
    assert [c.new_cell for c in decisions if isinstance(c, Split)] == ["cell-0"]


@pytest.mark.parametrize(
    ("high", "work", "ratio", "victim"),
    [
        ("", {"a": 1, "b": 9, "c": 9, "d": 9}, 0.0, "a"),
        ("", {"a": 9, "b": 9, "c": 0, "d": 9}, 0.0, "c"),
        ("", {"a": 9, "b": 9, "c": 9}, 0.0, "d"),
        ("", {}, 0.0, "d"),
        # At 0.4 there are 2 HP of 4 and 1 of 3, at 0.33 and 0.5 it is an LP instance too many.
        ("ab", {"a": 2, "b": 3, "c": 1, "d": 1}, 0.4, "a"),
        ("b", {"a": 2, "b": 0, "c": 1, "d": 3}, 0.33, "c"),
        ("ab", {"a": 0, "b": 0, "c": 2, "d": 1}, 0.5, "d"),
        ("abcd", {"a": 4, "b": 1, "c": 3, "d": 2}, 1.0, "b"),
    ],
)
def test_mitosis_removes_the_least_work_of_the_larger_pool(
    high: str, work: dict[str, int], ratio: float, victim: str
) -> None:
    cells = (Cell("cell-0", ("a", "b", "c", "d"), tuple(high)),)
    (decision, *_) = plan(cells, 3, FIGURE, ratio, work)
    assert isinstance(decision, Remove) and decision.instance == victim


def test_mitosis_pools_follow_the_ratio_with_the_fewest_changes() -> None:
    cells = (Cell("cell-0", tuple("abcdef"), ("f",)),)
    (decision,) = plan(cells, 6, FIGURE, 0.33, {"a": 1, "c": 1})
    assert decision == SetPool(
        "b", Pool.HP, "1 of 6 instances of cell-0 are high priority, should be 2."
    )
    (decision,) = plan(cells, 6, FIGURE, 0.0)
    assert isinstance(decision, SetPool) and decision.instance == "f"


@pytest.mark.parametrize(
    ("lower", "upper", "why"),
    [(0, 4, "lower bound"), (3, 4, "must be 5 or more"), (5, 4, "must be 9 or more")],
)
def test_mitosis_bounds_that_cannot_split_are_refused(lower: int, upper: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Bounds(lower, upper)


def test_mitosis_with_a_negative_target_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 instances are desired"):
        plan((), -1, FIGURE)


def test_mitosis_with_an_instance_in_two_cells_asserts() -> None:
    with pytest.raises(AssertionError, match="in two cells"):
        plan((Cell("cell-0", ("a",)), Cell("cell-1", ("a",))), 2, FIGURE)


@st.composite
def bounds(draw: st.DrawFn) -> Bounds:
    lower = draw(st.integers(1, 6))
    return Bounds(lower, draw(st.integers(2 * lower - 1, 2 * lower + 6)))


@st.composite
def cells_in_any_state(draw: st.DrawFn) -> tuple[Cell, ...]:
    cells = cells_of(*draw(st.lists(st.integers(0, 12), max_size=6)))
    shuffled = draw(st.permutations(cells))
    return tuple(
        Cell(cell.name, cell.instances, tuple(draw(st.sets(st.sampled_from(cell.instances)))))
        if cell.instances
        else cell
        for cell in shuffled
    )


targets = st.integers(0, 60)
ratios = st.sampled_from([0.0, 0.2, 0.33, 0.5, 1.0])
works = st.dictionaries(
    st.integers(0, 40).map(lambda i: f"instance-{i}"), st.integers(0, 5), max_size=40
)


@given(cells_in_any_state(), targets, bounds(), ratios, works)
def test_mitosis_plan_from_any_cells_leads_to_the_desired_cells(
    cells, target, bounds, ratio, work
) -> None:
    decisions = plan(cells, target, bounds, ratio, work)
    after = carried_out(cells, decisions)
    names = [name for cell in after for name in cell.instances]
    assert len(names) == target == len(set(names))
    if target >= bounds.lower:
        assert all(bounds.lower <= cell.size <= bounds.upper for cell in after)
    else:
        assert len(after) <= 1
    smallest = sorted(cell.size for cell in after)[:2]
    assert len(smallest) < 2 or sum(smallest) > bounds.upper
    for cell in after:
        assert len(cell.high_priority) == high_priority_count(cell.size, ratio)
    assert plan(after, target, bounds, ratio, work) == ()


@given(cells_in_any_state(), targets, bounds(), ratios, works)
def test_mitosis_plan_starts_and_stops_as_few_as_possible(
    cells, target, bounds, ratio, work
) -> None:
    total = sum(cell.size for cell in cells)
    kinds = Counter(type(decision) for decision in plan(cells, target, bounds, ratio, work))
    assert kinds[Add] == max(0, target - total)
    assert kinds[Remove] == max(0, total - target)


@given(cells_in_any_state(), targets, bounds(), ratios, works, st.randoms())
def test_mitosis_plan_is_independent_of_the_order_of_cells(
    cells, target, bounds, ratio, work, random
) -> None:
    shuffled = list(cells)
    random.shuffle(shuffled)
    assert plan(shuffled, target, bounds, ratio, work) == plan(cells, target, bounds, ratio, work)


@given(cells_in_any_state(), targets, bounds(), ratios, works, st.data())
def test_mitosis_plan_resumed_midway_continues_the_same(
    cells, target, bounds, ratio, work, data
) -> None:
    decisions = plan(cells, target, bounds, ratio, work)
    done = data.draw(st.integers(0, len(decisions)))
    midway = carried_out(cells, decisions[:done])
    assert plan(midway, target, bounds, ratio, work) == decisions[done:]


@given(cells_in_any_state(), targets, bounds(), ratios, works)
def test_mitosis_removal_leaves_instances_with_no_less_work(
    cells, target, bounds, ratio, work
) -> None:
    for decision in plan(cells, target, bounds, ratio, work):
        if isinstance(decision, Remove):
            cell = next(cell for cell in cells if cell.name == decision.cell)
            is_high = decision.instance in cell.high_priority
            pool = cell.high_priority if is_high else cell.low_priority
            assert work.get(decision.instance, 0) == min(work.get(name, 0) for name in pool)
        cells = apply(cells, decision)


@given(cells_in_any_state(), targets, bounds(), ratios, works)
def test_mitosis_split_keeps_the_lower_bound_of_serving_instances(
    cells, target, bounds, ratio, work
) -> None:
    for decision in plan(cells, target, bounds, ratio, work):
        if isinstance(decision, Split):
            cell = next(cell for cell in cells if cell.name == decision.cell)
            serving = sum(name in work for name in cell.instances)
            moved = sum(name in work for name in decision.instances)
            others_left = len(decision.instances) - moved < cell.size - serving
            assert serving - moved >= bounds.lower or moved == 0 or not others_left
            assert serving - moved <= bounds.lower or moved == len(decision.instances)
        cells = apply(cells, decision)


@given(bounds(), ratios, st.lists(st.integers(-3, 3), min_size=1, max_size=40))
def test_mitosis_after_any_walk_leaves_at_most_two_partial_cells(bounds, ratio, actions) -> None:
    """EcoServe has several full macro instances and one or two partly filled ones.

    Where two cells at the lower bound do not fit into one, more can be partly filled on the way
    down.
    """
    assume(2 * bounds.lower <= bounds.upper)
    cells: tuple[Cell, ...] = ()
    target = bounds.lower
    for action in actions:
        target = max(0, target + action)
        cells = carried_out(cells, plan(cells, target, bounds, ratio))
        assert sum(cell.size < bounds.upper for cell in cells) <= 2
