"""Simulated fleet that grows and shrinks by the operator's own plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import msgspec

from macroserve.core.routing.decision import RouteDecision, RouteRequest
from macroserve.core.routing.ledger import CellLedger
from macroserve.core.scaling.fleet import (
    Action,
    Attach,
    DeleteCell,
    DeployCell,
    DesiredFleet,
    Drain,
    Fleet,
    Member,
    MemberState,
    Migrate,
    Relabel,
    Start,
    Stop,
    plan_actions,
)
from macroserve.core.scaling.load import LoadReport
from macroserve.core.scaling.load_recorder import LoadRecorder, aged, total
from macroserve.core.status import CellView, Pool
from macroserve.sim.autoscaling.start_up import StartUp
from macroserve.sim.instance import InstanceSpec
from macroserve.sim.router import CellsRouter


@dataclass(frozen=True, slots=True)
class _Starting:
    ends_s: float
    fails: bool


class AutoscaledFleet(CellsRouter):
    """Fleet whose instances start, drain, stop and move by ``plan_actions``.

    A drained instance finishes its running requests without a drain budget and hands back waiting
    ones.
    """

    def __init__(
        self, spec: InstanceSpec, desired: DesiredFleet, start_up: StartUp, random: Random
    ) -> None:
        super().__init__(spec)
        self.num_failed = 0
        self._start_up = start_up
        self._random = random
        self._starting: dict[str, _Starting] = {}
        self._places: dict[str, tuple[str, Pool]] = {}
        self._draining: set[str] = set()
        self._loads: dict[str, LoadRecorder] = {}
        self._past: list[tuple[float, LoadReport]] = []
        for action in plan_actions(Fleet(), desired).actions:
            self._apply(action, 0.0)
        self._starting = {name: _Starting(0.0, False) for name in self._starting}
        self.reconcile(desired, 0.0)

    @property
    def num_ready(self) -> int:
        """Return the number of instances that take requests."""
        return len(self.instances) - len(self._draining)

    @property
    def num_existing(self) -> int:
        """Return the number of instances that start, serve or drain."""
        return len(self._places)

    @property
    def views(self) -> tuple[CellView, ...]:
        return tuple(ledger.cell_view(name) for name, ledger in self._ledgers.items())

    def load(self, now: float) -> LoadReport:
        """Return the load of all cells, including deleted ones, with one instance's latency
        model."""
        past = [aged(report, now - since_s) for since_s, report in self._past]
        report = total([*(load.report(now) for load in self._loads.values()), *past], self._random)
        latency = next(iter(self.instances.values())).policy.latency
        return msgspec.structs.replace(
            report,
            model=latency.model,
            device=latency.device,
            coefficients=latency.coefficients,
            max_num_seqs=self._spec.config.max_num_seqs,
            max_batch_tokens=self._spec.config.max_batch_tokens,
        )

    def reconcile(self, desired: DesiredFleet, now: float) -> None:
        """Take the actions that are due."""
        ended = [name for name, start in self._starting.items() if start.ends_s <= now]
        self.num_failed += sum(self._starting[name].fails for name in ended)
        for action in plan_actions(self._observed(now), desired).actions:
            self._apply(action, now)
        high = {self._places[name][0] for name in self.instances if self._is_high(name)}
        for name, instance in self.instances.items():
            instance.policy.let_offload(self._places[name][0] in high)

    def _is_high(self, name: str) -> bool:
        return self._places[name][1] is Pool.HP and name not in self._draining

    def _placed(
        self, cell: str, request: RouteRequest, decision: RouteDecision, now: float
    ) -> None:
        if not request.offloaded:
            known = request.request
            num_to_compute = known.num_prompt_tokens - decision.num_cached
            self._loads[cell].add(num_to_compute, request.num_output_tokens, now, known.slo_class)

    def _observed(self, now: float) -> Fleet:
        remaining = self._remaining_tokens()
        members = tuple(
            Member(
                name,
                self._state(name, now),
                pool,
                cell,
                joined=name in self.instances,
                draining=name in self._draining,
                drained=name in self._draining and not self.instances[name].num_requests,
                remaining_tokens=remaining.get(name, 0),
            )
            for name, (cell, pool) in self._places.items()
        )
        return Fleet(members, frozenset(self._ledgers))

    def _state(self, name: str, now: float) -> MemberState:
        start = self._starting.get(name)
        if start is None:
            return MemberState.SERVING
        if start.ends_s > now:
            return MemberState.STARTING
        return MemberState.FAILED if start.fails else MemberState.SERVING

    def _remaining_tokens(self) -> Mapping[str, int]:
        views = [view for ledger in self._ledgers.values() for view in ledger.views]
        return {view.name: view.status.remaining_tokens for view in views}

    def _apply(self, action: Action, now: float) -> None:
        match action:
            case DeployCell(cell=cell):
                self._deploy(cell, now)
            case Start(instance=name, cell=cell, pool=pool):
                course = self._start_up.draw(self._random)
                self._starting[name] = _Starting(now + course.after_s, course.fails)
                self._places[name] = cell, pool
            case Relabel(instance=name, cell=cell, pool=pool):
                self._places[name] = cell, pool
            case Attach(instance=name, cell=cell):
                del self._starting[name]
                self._add(name, cell, self._places[name][1], now)
            case Migrate(instance=name, to_cell=cell, as_pool=pool):
                former, before = self._places[name]
                if before is not pool:
                    self._set_pool(name, pool)
                if former != cell:
                    self._move(name, former, cell, now)
                self._places[name] = cell, pool
            case Drain(instance=name):
                self._draining.add(name)
                self.instances[name].policy.drain()
                self.report(self.instances[name], now)
            case Stop(instance=name):
                self._stop(name)
            case DeleteCell(cell=cell):
                self._past.append((now, self._loads.pop(cell).report(now)))
                del self._ledgers[cell]

    def _deploy(self, cell: str, now: float) -> None:
        self._loads[cell] = LoadRecorder(now, self._random)
        self._ledgers.setdefault(cell, CellLedger(self._spec.config.strategy))

    def _stop(self, name: str) -> None:
        del self._places[name]
        self._starting.pop(name, None)
        self._draining.discard(name)
        if self.instances.pop(name, None) is not None:
            self._homes.pop(name).remove(name)
