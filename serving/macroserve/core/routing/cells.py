"""Order in which an ingress asks cells to take a request (top of EcoServe's three levels)."""

from collections.abc import Sequence
from typing import NamedTuple

from macroserve.core.routing.constraints import Demand, prefill_share
from macroserve.core.routing.prefixes import copy_s, latest_s
from macroserve.core.status import CellView


class CellAttempt(NamedTuple):
    """One question to a cell whether it takes the request."""

    cell: str
    ignore_constraints: bool
    """Whether the cell takes the request even if no instance satisfies the constraints."""


def cells_to_ask(
    cells: Sequence[CellView], demand: Demand | None = None, session_holder: str | None = None
) -> list[CellAttempt]:
    """Return the attempts to make until a cell takes the request: first each cell with its
    constraints, then each without. A single cell is asked once.

    Cells are sorted by waiting work per ready instance, then by running requests, then by name.
    Cells without a ready instance come last: they may have one by then.

    demand: demand of the request, with the prompt tokens cached in each cell. The cell with most of
        them comes first if the extra time there costs no more than a copy (as in
        ``prefixes.with_prefix``); the same rule orders the rest.
    session_holder: cell that got the session's last request; comes before all others if the first
        token is in time there or no later than elsewhere.
    """
    ready = sorted([cell for cell in cells if cell.num_ready], key=_load)
    if demand:
        ready = _with_session(_by_prefix(ready, demand), session_holder, demand)
    others = [cell for cell in cells if not cell.num_ready]
    choices = [CellAttempt(cell.name, False) for cell in ready] if len(ready) > 1 else []
    return choices + [CellAttempt(cell.name, True) for cell in (*ready, *others)]


def _by_prefix(ready: Sequence[CellView], demand: Demand) -> list[CellView]:
    left, order = list(ready), list[CellView]()
    while any(cell.name in demand.cached for cell in left):
        order.append(left.pop(_with_prefix(left, demand)))
    return order + left


def _with_prefix(ready: Sequence[CellView], demand: Demand) -> int:
    """Return the index of the cell with most of the prompt, among those where the last token is
    later than in the first cell by no more than a copy costs; the first token must be in time,
    unless it is late in the first cell as well.

    By the last token, because decodes slow down in a busy cell: by the first, one popular prefix
    would send all requests to one cell, where their short prefills hardly wait.
    """
    first, had = ready[0], demand.cached.get(ready[0].name, 0)
    end_s = _last_token_s(first, demand)
    bound_s = latest_s(_first_token_s(first, demand), demand.ttft_left_s)
    num_waiting = first.num_waiting / first.num_ready
    better = [
        index
        for index, cell in enumerate(ready)
        if (num_more := demand.cached.get(cell.name, 0) - had) > 0
        and _first_token_s(cell, demand) <= bound_s
        and _last_token_s(cell, demand) - end_s
        <= copy_s(num_more, cell.prefill_s_per_token, num_waiting)
    ]
    return max(better, key=lambda index: demand.cached[ready[index].name], default=0)


def _with_session(
    ready: Sequence[CellView], session_holder: str | None, demand: Demand
) -> list[CellView]:
    home = next((cell for cell in ready if cell.name == session_holder), None)
    if home is None:
        return list(ready)
    bound_s = max(_first_token_s(ready[0], demand), demand.ttft_left_s)
    if _first_token_s(home, demand) > bound_s:
        return list(ready)
    return [home, *(cell for cell in ready if cell is not home)]


def _first_token_s(cell: CellView, demand: Demand) -> float:
    """Return ``constraints.first_token_s`` of the cell's mean instance."""
    num_to_compute = demand.num_prompt_tokens - demand.cached.get(cell.name, 0)
    wait_s = cell.waiting_prefill_s / cell.num_ready + num_to_compute * cell.prefill_s_per_token
    return wait_s / prefill_share(cell.decode_step_s, demand)


def _last_token_s(cell: CellView, demand: Demand) -> float:
    """Return the predicted seconds to the last token at the cell's mean instance."""
    num_output_tokens = demand.num_tokens - demand.num_prompt_tokens
    return _first_token_s(cell, demand) + num_output_tokens * cell.decode_step_s


def _load(cell: CellView) -> tuple[float, float, str]:
    return cell.waiting_prefill_s / cell.num_ready, cell.num_running / cell.num_ready, cell.name
