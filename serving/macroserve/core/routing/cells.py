"""Which cells are asked to take a request, one after another (top level of EcoServe's three)."""

from collections.abc import Sequence
from typing import NamedTuple

from macroserve.core.status import CellView


class Turn(NamedTuple):
    """force: the cell takes the request even if no instance of it meets the constraints."""

    cell: str
    force: bool


def turns(cells: Sequence[CellView]) -> list[Turn]:
    """Until one of them takes the request: each cell in which it can be in time, then any.

    The cell with the least waiting work per ready instance comes first, then the one with the
    fewest running requests, then the first by name. A lone one is not asked twice, and those
    without a ready instance come last: they may have one by then.
    """
    ready = sorted([cell for cell in cells if cell.num_ready], key=_load)
    others = [cell for cell in cells if not cell.num_ready]
    choices = [Turn(cell.name, False) for cell in ready] if len(ready) > 1 else []
    return choices + [Turn(cell.name, True) for cell in (*ready, *others)]


def _load(cell: CellView) -> tuple[float, float, str]:
    return cell.waiting_prefill_s / cell.num_ready, cell.num_running / cell.num_ready, cell.name
