"""Routers of simulated requests: within one cell, or over cells that grow and split by mitosis."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from macroserve.core.routing.decision import RouteDecision, RouteRequest
from macroserve.core.routing.ledger import CellLedger
from macroserve.core.routing.overall import OverallScheduler
from macroserve.core.scaling.decisions import Add, Cell, Decision, SetPool, Split, apply
from macroserve.core.scaling.mitosis import Bounds, high_priority_count, plan
from macroserve.core.status import Pool
from macroserve.sim.instance import InstanceSpec, SimulatedInstance


class Router(ABC):
    """Chooser of an instance for each request, by the statuses that instances report."""

    def __init__(self) -> None:
        self.instances: dict[str, SimulatedInstance] = {}
        """By name, in order of addition."""

    @abstractmethod
    def assign(self, request: RouteRequest, now: float) -> str | None:
        """Return the name of the chosen instance; None if the request excludes all of them."""

    @abstractmethod
    def ledger(self, instance: str) -> CellLedger:
        """Return the ledger of the instance's cell."""

    @property
    @abstractmethod
    def ledgers(self) -> Collection[CellLedger]:
        """Return the ledgers of all cells."""

    @property
    def prefix_cache_hit_ratio(self) -> float:
        """Return the share of prompt tokens found in prefix caches so far."""
        cells = [ledger.cell_view("") for ledger in self.ledgers]
        num_tokens = sum(cell.prompt_tokens for cell in cells)
        return sum(cell.cached_tokens for cell in cells) / num_tokens if num_tokens else 0.0

    def report(self, instance: SimulatedInstance, now: float) -> None:
        self.ledger(instance.name).observe(instance.name, instance.status(now), now)


class CellRouter(Router):
    """Router of a single cell."""

    def __init__(self, instances: Sequence[SimulatedInstance]) -> None:
        super().__init__()
        configs = [instance.policy.config for instance in instances]
        self._ledger = CellLedger(configs[0].strategy)
        has_high = any(config.pool is Pool.HP for config in configs)
        for instance, config in zip(instances, configs, strict=True):
            self.instances[instance.name] = instance
            self._ledger.add(instance.name, config.pool, config.max_num_seqs)
            self.report(instance, 0.0)
            instance.policy.let_offload(has_high)

    def assign(self, request: RouteRequest, now: float) -> str | None:
        return self._ledger.assign(request, now).instance

    def ledger(self, instance: str) -> CellLedger:
        return self._ledger

    @property
    def ledgers(self) -> Collection[CellLedger]:
        return (self._ledger,)


class CellsRouter(Router):
    """Router of several cells, which chooses a cell as ingresses do and an instance there."""

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__()
        self._spec = spec
        self._overall = OverallScheduler(spec.config.strategy)
        self._ledgers: dict[str, CellLedger] = {}
        self._homes: dict[str, CellLedger] = {}

    def assign(self, request: RouteRequest, now: float) -> str | None:
        views = {name: ledger.cell_view(name) for name, ledger in self._ledgers.items()}
        for name, ignore_constraints in self._overall.attempts([*views.values()], request, now):
            ledger = self._ledgers[name]
            decision = ledger.assign(request, now, ignore_constraints=ignore_constraints)
            if decision.instance is not None:
                num_tokens = request.request.num_prompt_tokens
                self._overall.note(views[name], num_tokens, request.prefix, request.session)
                self._placed(name, request, decision, now)
                return decision.instance
        return None

    def ledger(self, instance: str) -> CellLedger:
        return self._homes[instance]

    @property
    def ledgers(self) -> Collection[CellLedger]:
        return self._ledgers.values()

    def _placed(
        self, cell: str, request: RouteRequest, decision: RouteDecision, now: float
    ) -> None:
        """Observe a request that was placed; for subclasses."""

    def _add(self, name: str, cell: str, pool: Pool, now: float) -> None:
        self.instances[name] = SimulatedInstance(name, pool, self._spec)
        self._join(name, cell, now)

    def _move(self, name: str, former: str, cell: str, now: float) -> None:
        held = self._homes[name].release(name)
        self._join(name, cell, now)
        self._homes[name].take_prefixes(name, held)
        self._overall.left(former, held)
        self._overall.arrived(cell, held)

    def _set_pool(self, name: str, pool: Pool) -> None:
        self.instances[name].policy.set_pool(pool)
        self._homes[name].set_pool(name, pool)

    def _join(self, name: str, cell: str, now: float) -> None:
        config = self._spec.config
        ledger = self._ledgers.setdefault(cell, CellLedger(config.strategy))
        self._homes[name] = ledger
        instance = self.instances[name]
        ledger.add(name, instance.policy.config.pool, config.max_num_seqs)
        self.report(instance, now)


class FleetRouter(CellsRouter):
    """Router of cells within ``bounds``, formed by mitosis."""

    def __init__(
        self,
        spec: InstanceSpec,
        num_instances: int,
        bounds: Bounds,
        high_priority_ratio: float = 0.0,
    ) -> None:
        super().__init__(spec)
        self.cells: tuple[Cell, ...] = ()
        self._bounds = bounds
        self._ratio = high_priority_ratio
        self.grow(num_instances, 0.0)

    def grow(self, num_instances: int, now: float) -> None:
        """Grow to ``num_instances``, no fewer than before. Instances that move to another cell
        continue to serve."""
        decisions = plan(
            self.cells, num_instances, self._bounds, self._ratio, self._remaining_tokens()
        )
        for decision in decisions:
            self._apply(decision, now)
            self.cells = apply(self.cells, decision)
        for cell in self.cells:
            for name in cell.instances:
                self.instances[name].policy.let_offload(bool(cell.high_priority))

    def _apply(self, decision: Decision, now: float) -> None:
        match decision:
            case Add(cell=cell, instance=name, pool=pool):
                self._add(name, cell, pool, now)
            case Split(cell=former, new_cell=cell, instances=names):
                for name in names:
                    self._move(name, former, cell, now)
            case SetPool(instance=name, pool=pool):
                self._set_pool(name, pool)
            case _:
                raise AssertionError(f"a fleet that grows needs no {decision}")

    def _remaining_tokens(self) -> Mapping[str, int]:
        views = [view for ledger in self._ledgers.values() for view in ledger.views]
        return {view.name: view.status.remaining_tokens for view in views}


def cell_instances(
    spec: InstanceSpec, num_instances: int, high_priority_ratio: float
) -> list[SimulatedInstance]:
    """Return the instances of a cell."""
    pools = cell_pools(num_instances, high_priority_ratio)
    return [SimulatedInstance(f"instance-{index}", pool, spec) for index, pool in enumerate(pools)]


def cell_pools(num_instances: int, high_priority_ratio: float) -> list[Pool]:
    """Return the pools of a cell's instances, HP first."""
    num_high = high_priority_count(num_instances, high_priority_ratio)
    return [Pool.HP if index < num_high else Pool.LP for index in range(num_instances)]
