"""An ingress queries cells in the order of their load, after one with a long cached prefix."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.instance_views import FRESH, NOW, STATUS

from macroserve.core.routing.cells import CellAttempt, cells_to_ask
from macroserve.core.routing.constraints import Demand
from macroserve.core.routing.prefixes import REPLICA_COST
from macroserve.core.status import CellView

SAVED = 448
"""Tokens of FRESH's 512 that are cached: 0.4375 of its half a second of prefill."""


def cell(
    name: str,
    num_ready: int = 2,
    wait_s: float = 0.0,
    num_running: int = 0,
    decode_step_s: float = 0.0,
    num_waiting: int = 0,
) -> CellView:
    instances = ("x", "y", "z")
    return CellView(
        name,
        instances,
        num_ready=num_ready,
        waiting_prefill_s=wait_s,
        num_running=num_running,
        num_waiting=num_waiting,
        prefill_s_per_token=STATUS.prefill_s_per_token,
        decode_step_s=decode_step_s,
    )


def with_cached(cells: list[CellView], cached: Mapping[str, int]) -> list[CellAttempt]:
    return cells_to_ask(cells, Demand.of(FRESH, by_mean=False, now=NOW, cached=cached))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([cell("a", wait_s=2.0), cell("b", wait_s=1.0)], ["b", "a"]),
        # Per instance that takes requests, not in total.
        ([cell("a", num_ready=3, wait_s=2.0), cell("b", num_ready=1, wait_s=1.0)], ["a", "b"]),
        ([cell("a", num_running=5), cell("b", num_running=4)], ["b", "a"]),
        ([cell("a", 1, num_running=4), cell("b", 2, num_running=5)], ["b", "a"]),
        ([cell("a", num_running=0, wait_s=1.0), cell("b", num_running=9)], ["b", "a"]),
        ([cell("b"), cell("c", wait_s=1.0), cell("a")], ["a", "b", "c"]),
    ],
)
def test_cells_are_all_asked_with_constraints_before_without(
    cells: list[CellView], expected: list[str]
) -> None:
    choices = [(name, False) for name in expected]
    assert cells_to_ask(cells) == [*choices, *[(name, True) for name in expected]]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([], []),
        ([cell("a")], [("a", True)]),
        ([cell("a", num_ready=0)], [("a", True)]),
        ([cell("a", num_ready=0), cell("b", wait_s=9.0)], [("b", True), ("a", True)]),
    ],
)
def test_single_cell_is_asked_once_without_constraints(
    cells: list[CellView], expected: list[tuple[str, bool]]
) -> None:
    assert cells_to_ask(cells) == expected


@pytest.mark.parametrize(
    ("cells", "cached", "expected"),
    [
        ([cell("a"), cell("b")], {"b": SAVED}, "ba"),
        ([cell("a"), cell("b"), cell("c")], {"b": 64, "c": SAVED}, "cba"),
        ([cell("a"), cell("b"), cell("c")], {"a": SAVED, "c": SAVED}, "acb"),
        ([cell("a"), cell("b", wait_s=0.2), cell("c", wait_s=0.4)], {"c": SAVED}, "cab"),
        ([cell("a"), cell("b", wait_s=1.0), cell("c", wait_s=0.4)], {"b": 64, "c": SAVED}, "cab"),
        ([cell("a"), cell("b")], {"gone": SAVED}, "ab"),
        # The least loaded of those with the same prefix.
        ([cell("a"), cell("b", wait_s=0.4), cell("c", wait_s=0.2)], {"b": 64, "c": 64}, "cab"),
        # Two instances: a wait of up to twice the prefill that it saves, beyond what is saved.
        ([cell("a"), cell("b", wait_s=2.5)], {"b": SAVED}, "ba"),
        ([cell("a"), cell("b", wait_s=2.75)], {"b": SAVED}, "ab"),
        ([cell("a"), cell("b", wait_s=0.375)], {"b": 64}, "ba"),
        ([cell("a"), cell("b", wait_s=0.5)], {"b": 64}, "ab"),
        # Only a longer prefix than the first cell's counts.
        ([cell("a"), cell("b", wait_s=0.375)], {"a": SAVED - 64, "b": SAVED}, "ba"),
        ([cell("a"), cell("b", wait_s=0.5)], {"a": SAVED - 64, "b": SAVED}, "ab"),
        # 128 tokens of the response take longer, too.
        ([cell("a"), cell("b", decode_step_s=0.01)], {"b": SAVED}, "ba"),
        ([cell("a"), cell("b", decode_step_s=0.0125)], {"b": SAVED}, "ab"),
        ([cell("b", decode_step_s=0.0125), cell("a", decode_step_s=0.0125)], {"b": 64}, "ba"),
        # Beside decodes that take half of the time, prefills take twice as long.
        ([cell("a"), cell("b", wait_s=0.3)], {"b": 64}, "ba"),
        ([cell("a", decode_step_s=0.05), cell("b", 2, 0.2, 0, 0.05)], {"b": 64}, "ba"),
        ([cell("a", decode_step_s=0.05), cell("b", 2, 0.3, 0, 0.05)], {"b": 64}, "ab"),
        # A late cell is skipped, unless the first one would also be late.
        ([cell("a", wait_s=2.5), cell("b", wait_s=4.0)], {"b": SAVED}, "ab"),
        ([cell("a", wait_s=9.0), cell("b", wait_s=9.0)], {"b": SAVED}, "ba"),
        ([cell("a", wait_s=4.0), cell("b", wait_s=4.75)], {"b": SAVED}, "ba"),
        ([cell("a", wait_s=4.0), cell("b", wait_s=6.5)], {"b": SAVED}, "ba"),
        ([cell("a", wait_s=4.0), cell("b", wait_s=6.75)], {"b": SAVED}, "ab"),
        # As much again for each request at an instance that would wait for a copy, too.
        ([cell("a", num_waiting=2), cell("b", wait_s=0.6)], {"b": 64}, "ba"),
        ([cell("a", num_waiting=2), cell("b", wait_s=0.75)], {"b": 64}, "ab"),
    ],
)
def test_cell_with_most_of_the_prompt_is_asked_first_if_worth_the_time_there(
    cells: list[CellView], cached: dict[str, int], expected: str
) -> None:
    rounds = [(name, ignore) for ignore in (False, True) for name in expected]
    assert with_cached(cells, cached) == rounds


def test_cell_with_the_prompt_and_no_ready_instance_comes_last() -> None:
    assert with_cached([cell("a"), cell("b", num_ready=0)], {"b": SAVED}) == [
        ("a", True),
        ("b", True),
    ]


@given(st.lists(st.tuples(st.integers(1, 4), st.floats(0.0, 3.0), st.integers(0, 511))))
def test_each_cell_is_the_least_loaded_of_those_left_or_has_more_and_is_worth_its_wait(
    loads: list[tuple[int, float, int]],
) -> None:
    cells = [
        cell(str(index), num_ready, wait_s * num_ready)
        for index, (num_ready, wait_s, _) in enumerate(loads)
    ]
    cached = {str(index): num_tokens for index, (*_, num_tokens) in enumerate(loads) if num_tokens}
    waits = {each.name: each.waiting_prefill_s / each.num_ready for each in cells}
    by_load = [name for name, _ in cells_to_ask(cells)][-len(cells) :]
    order = [name for name, _ in with_cached(cells, cached)][-len(cells) :]
    assert sorted(order) == sorted(by_load)
    for name in order:
        least = by_load[0]
        by_load.remove(name)
        if name != least:
            num_more = cached[name] - cached.get(least, 0)
            # Its own saving, and the cost of a copy.
            worth_s = (1 + REPLICA_COST) * num_more * STATUS.prefill_s_per_token
            assert num_more > 0 and waits[name] - waits[least] <= worth_s + 1e-9
