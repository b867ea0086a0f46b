"""An ingress asks cells in this order to take a request (top level of EcoServe's three)."""

from collections.abc import Sequence
from typing import NamedTuple

from macroserve.core.routing.constraints import Demand, prefill_share
from macroserve.core.routing.prefixes import copy_s, latest_s
from macroserve.core.status import CellView


class CellAttempt(NamedTuple):
    """An ingress asks a cell once to take the request."""

    cell: str
    ignore_constraints: bool
    """Whether the cell takes the request even if none of its instances meets the constraints."""


def cells_to_ask(
    cells: Sequence[CellView], demand: Demand | None = None, session_holder: str | None = None
) -> list[CellAttempt]:
    """Return the attempts to make until a cell takes the request: each cell with its constraints
    first, then each one without.

    The cell with the least waiting work per ready instance comes first, then the one with the
    fewest running requests, then the first by name. A single cell is not asked twice. Cells without
    a ready instance come last: they may have one by then.

    demand: what the request demands, with what cells are expected to have of its prompt. The cell
        that has most of it comes before all others, if the time there beyond that in the first one
        is no longer than a copy costs (``prefixes.with_prefix`` decides so within a cell). So it is
        with those that are left, in case the cell declines.
    session_holder: the cell that got the last request of the session; before all others, if the
        first token is in time there or no later.
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
    """Return the index of the cell that has most of the prompt, of those where the last token is
    later than in the first cell by no more than a copy there costs. One where the first token would
    be late is passed over, unless it would be late in the first cell, too. 0 if that one has most
    itself.

    The last token, because decodes take longer in a busy cell: one popular beginning would send all
    requests to one cell, where they hardly wait for their short prefills.
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
    # In time, or as soon as in the first cell.
    bound_s = max(_first_token_s(ready[0], demand), demand.ttft_left_s)
    if _first_token_s(home, demand) > bound_s:
        return list(ready)
    return [home, *(cell for cell in ready if cell is not home)]


def _first_token_s(cell: CellView, demand: Demand) -> float:
    """Return the seconds to the first token at the cell's mean instance, as
    ``constraints.first_token_s`` predicts them for one."""
    num_to_compute = demand.num_prompt_tokens - demand.cached.get(cell.name, 0)
    wait_s = cell.waiting_prefill_s / cell.num_ready + num_to_compute * cell.prefill_s_per_token
    return wait_s / prefill_share(cell.decode_step_s, demand)


def _last_token_s(cell: CellView, demand: Demand) -> float:
    """Return the predicted seconds to the last token at the cell's mean instance."""
    num_output_tokens = demand.num_tokens - demand.num_prompt_tokens
    return _first_token_s(cell, demand) + num_output_tokens * cell.decode_step_s


def _load(cell: CellView) -> tuple[float, float, str]:
    return cell.waiting_prefill_s / cell.num_ready, cell.num_running / cell.num_ready, cell.name
