"""An ingress asks cells in an order by their load."""

import pytest

from macroserve.core.routing.cells import cells_to_ask
from macroserve.core.status import CellView


def cell(name: str, num_ready: int = 2, wait_s: float = 0.0, num_running: int = 0) -> CellView:
    instances = ("x", "y", "z")
    return CellView(
        name,
        instances,
        num_ready=num_ready,
        waiting_prefill_s=wait_s,
        num_running=num_running,
    )


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
