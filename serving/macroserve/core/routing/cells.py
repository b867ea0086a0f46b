"""The overall scheduler: which cell takes a request (top level of EcoServe's three)."""

from collections.abc import Sequence, Set

from macroserve.core.views import CellView


def choose_cell(cells: Sequence[CellView], exclude: Set[str] = frozenset()) -> str | None:
    """The cell with the least waiting work per ready instance, then with the fewest running
    requests, then the first by name. None where no cell has a ready instance."""
    ready = [cell for cell in cells if cell.num_ready and cell.name not in exclude]
    return min(ready, key=_load).name if ready else None


def _load(cell: CellView) -> tuple[float, float, str]:
    return cell.waiting_prefill_s / cell.num_ready, cell.num_running / cell.num_ready, cell.name
