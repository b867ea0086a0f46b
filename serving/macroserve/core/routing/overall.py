"""The overall scheduler of an ingress, which chooses the cells to ask for each request."""

from collections.abc import Sequence

from macroserve.core.routing.cells import CellAttempt, cells_to_ask
from macroserve.core.routing.constraints import Demand
from macroserve.core.routing.decision import RouteRequest
from macroserve.core.routing.prefixes import HeldKey, PrefixKeys, PrefixRecord
from macroserve.core.routing.sessions import SessionRecord
from macroserve.core.status import CellView
from macroserve.core.strategy import Strategy


class OverallScheduler:
    """Router over cells, with a record of the prefixes and sessions that each of them got."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._prefixes = PrefixRecord()
        self._sessions = SessionRecord()

    def attempts(
        self, cells: Sequence[CellView], request: RouteRequest, now: float
    ) -> list[CellAttempt]:
        """Return the attempts to make until a cell takes the request. A trial is routed by load
        alone, as within a cell."""
        for cell in cells:
            self._prefixes.observe(cell.name, cell.prompt_tokens, cell.cached_tokens)
        if request.trial or self._strategy.takes_turns:
            return cells_to_ask(cells)
        by_mean, cached = self._strategy.mean_slack, self._prefixes.expected(request.prefix)
        demand = Demand.of(request, by_mean, now, cached)
        return cells_to_ask(cells, demand, self._sessions.holder(request.session))

    def note(
        self, cell: CellView, num_prompt_tokens: int, prefix: PrefixKeys, session: int | None
    ) -> None:
        """Note that a cell took a request, of this ingress or of another."""
        self._sessions.note(session, cell.name)
        self._prefixes.note(cell.name, prefix, num_prompt_tokens, cell.pool_tokens)

    def arrived(self, cell: str, held: Sequence[HeldKey]) -> None:
        """Note that an instance with these cached prefixes joined the cell."""
        self._prefixes.take_over(cell, held)

    def left(self, cell: str, held: Sequence[HeldKey]) -> None:
        """Note that an instance with these cached prefixes left the cell. Copies on instances that
        stay are forgotten until they are used again."""
        self._prefixes.give_away(cell, held)

    def forget(self, cell: str) -> None:
        self._prefixes.forget(cell)
