"""Several cells in one virtual time: they share the requests, and may grow and divide."""

from collections.abc import Mapping
from typing import NamedTuple

from macroserve.core.routing.cells import turns
from macroserve.core.routing.decision import RouteDecision, RouteRequest
from macroserve.core.routing.ledger import CellLedger
from macroserve.core.scaling.commands import Add, Cell, Command, SetPriority, Split, apply
from macroserve.core.scaling.mitosis import Bounds, plan
from macroserve.sim.cell import SimulatedCell
from macroserve.sim.instance import InstanceSpec


class SimulatedFleet(SimulatedCell):
    """Cells within ``bounds``, as mitosis makes them out of nothing.

    cells: as they are now.
    """

    def __init__(
        self,
        engine: InstanceSpec,
        num_instances: int,
        bounds: Bounds,
        high_priority_ratio: float = 0.0,
    ) -> None:
        super().__init__(engine, 0, high_priority_ratio)
        self._bounds = bounds
        self._ratio = high_priority_ratio
        self.cells: tuple[Cell, ...] = ()
        self._ledgers: dict[str, CellLedger] = {}
        self._homes: dict[str, CellLedger] = {}
        self.grow(num_instances, 0.0)

    def grow(self, num_instances: int, now: float) -> None:
        """To so many instances, no fewer than there are. Those that change cells go on serving."""
        commands = plan(
            self.cells, num_instances, self._bounds, self._ratio, self._remaining_tokens()
        )
        for command in commands:
            self._carry_out(command, now)
            self.cells = apply(self.cells, command)
        for cell in self.cells:
            for name in cell.instances:
                self._instances[name].policy.let_offload(bool(cell.high_priority))

    def _carry_out(self, command: Command, now: float) -> None:
        match command:
            case Add(cell=cell, instance=name, pool=pool):
                self._homes[name] = self._ledgers.setdefault(cell, self._new_ledger())
                self._add(name, pool, now)
            case Split(new_cell=cell, instances=names):
                into = self._ledgers.setdefault(cell, self._new_ledger())
                for name in names:
                    instance = self._instances[name]
                    self._homes[name].remove(name)
                    self._homes[name] = into
                    into.add(name, instance.policy.config.pool, self._config.max_num_seqs)
                    self._report(instance, now)
            case SetPriority(instance=name, pool=pool):
                self._instances[name].policy.set_pool(pool)
                self._homes[name].set_pool(name, pool)
            case _:
                raise AssertionError(f"a fleet that grows needs no {command}")

    def _new_ledger(self) -> CellLedger:
        return CellLedger(self._config.strategy)

    def _remaining_tokens(self) -> Mapping[str, int]:
        views = [view for ledger in self._ledgers.values() for view in ledger.views]
        return {view.name: view.status.remaining_tokens for view in views}

    def _home(self, name: str) -> CellLedger:
        return self._homes[name]

    def _assign(self, request: RouteRequest, now: float) -> RouteDecision:
        """By the least loaded cell in which the request can be in time, else by the least loaded
        one, as ingresses ask them."""
        views = [ledger.cell_view(name) for name, ledger in self._ledgers.items()]
        for name, force in turns(views):
            decision = self._ledgers[name].assign(request, now)
            if force or decision.satisfied:
                return decision
            self._ledgers[name].settle(request.request.request_id)
        raise AssertionError("a fleet has cells")


class Reading(NamedTuple):
    """What was seen at a moment. attainment: of the requests that ended, or got late, since the
    last one."""

    at_s: float
    attainment: float
    num_instances: int
    num_cells: int


class GrowingFleet(SimulatedFleet):
    """One that gets an instance more whenever too few requests were within their targets.

    goal: the attainment, read every ``interval_s``, below which that is so. most: instances.
    The new one is ready at once: it was started beforehand.
    """

    def __init__(
        self,
        engine: InstanceSpec,
        num_instances: int,
        bounds: Bounds,
        *,
        goal: float,
        interval_s: float,
        most: int,
    ) -> None:
        super().__init__(engine, num_instances, bounds)
        self.readings: list[Reading] = []
        self._goal = goal
        self._interval_s = interval_s
        self._most = most
        self._seen = 0, 0
        self._events.put(interval_s, self._look)

    def _look(self, now: float) -> None:
        for instance in self._instances.values():
            self._settle(instance, now)
        known = self._results.outcome
        requests, attained = known.requests - self._seen[0], known.attained - self._seen[1]
        self._seen = known.requests, known.attained
        attainment = attained / requests if requests else 1.0
        num = len(self._instances)
        self.readings.append(Reading(now, attainment, num, len(self.cells)))
        if attainment < self._goal and num < self._most:
            self.grow(num + 1, now)
        self._events.put(now + self._interval_s, self._look)
