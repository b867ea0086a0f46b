"""An ingress asks cells in this order to take a request (top level of EcoServe's three)."""

from collections.abc import Sequence
from typing import NamedTuple

from macroserve.core.status import CellView


class CellAttempt(NamedTuple):
    """An ingress asks a cell once to take the request."""

    cell: str
    ignore_constraints: bool
    """Whether the cell takes the request even if none of its instances meets the constraints."""


def cells_to_ask(cells: Sequence[CellView]) -> list[CellAttempt]:
    """Return the attempts to make until a cell takes the request: each cell with its constraints
    first, then each one without.

    The cell with the least waiting work per ready instance comes first, then the one with the
    fewest running requests, then the first by name. A single cell is not asked twice. Cells without
    a ready instance come last: they may have one by then.
    """
    ready = sorted([cell for cell in cells if cell.num_ready], key=_load)
    others = [cell for cell in cells if not cell.num_ready]
    choices = [CellAttempt(cell.name, False) for cell in ready] if len(ready) > 1 else []
    return choices + [CellAttempt(cell.name, True) for cell in (*ready, *others)]


def _load(cell: CellView) -> tuple[float, float, str]:
    return cell.waiting_prefill_s / cell.num_ready, cell.num_running / cell.num_ready, cell.name
