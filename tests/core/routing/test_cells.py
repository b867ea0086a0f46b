"""Which cell takes a request."""

import pytest

from macroserve.core.routing.cells import choose_cell
from macroserve.core.views import CellView


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
        ([], None),
        ([cell("a", num_ready=0)], None),
        ([cell("a", wait_s=2.0), cell("b", wait_s=1.0)], "b"),
        # Per instance that takes requests, not in total.
        ([cell("a", num_ready=3, wait_s=2.0), cell("b", num_ready=1, wait_s=1.0)], "a"),
        ([cell("a", num_ready=0), cell("b", wait_s=9.0)], "b"),
        ([cell("a", num_running=5), cell("b", num_running=4)], "b"),
        ([cell("a", 1, num_running=4), cell("b", 2, num_running=5)], "b"),
        ([cell("a", num_running=0, wait_s=1.0), cell("b", num_running=9)], "b"),
        ([cell("b"), cell("a")], "a"),
    ],
)
def test_choose_cell(cells: list[CellView], expected: str | None) -> None:
    assert choose_cell(cells) == expected


def test_excluded_cells_are_not_chosen() -> None:
    cells = [cell("a"), cell("b")]
    assert choose_cell(cells, exclude={"a"}) == "b"
    assert choose_cell(cells, exclude={"a", "b"}) is None
