"""Fakes of Ray and of the admin API for the reconciler of one machine."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from macroserve.api.client import AdminError
from macroserve.api.messages import CellReport, InstanceIdentity, InstanceReport, Report
from macroserve.core.scaling.fleet import DesiredFleet
from macroserve.core.scaling.mitosis import Bounds
from macroserve.core.status import CellView, InstanceStatus, Pool
from macroserve.local.reconciler import Reconciler
from macroserve.serving.ray.cells import DeployError


@dataclass
class FakeInstance:
    pool: Pool
    cell: str | None = None
    """Cell that has the instance."""
    named: str | None = None
    """Cell in the instance's identity."""
    serves: bool = False
    hangs: bool = False
    draining: bool = False
    running: int = 0


@dataclass
class FakeCluster:
    """A fake of Ray and of the admin API. failing: names of calls that fail."""

    alive: dict[str, FakeInstance] = field(default_factory=dict)
    deployed: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    start_error: Exception | None = None
    may_serve: asyncio.Event = field(default_factory=asyncio.Event)
    killed: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.may_serve.set()

    def _may_fail(self, call: str) -> None:
        if call in self.failing:
            raise AdminError(f"{call} fails")

    # -- the cluster

    async def start_instance(self, name: str, pool: Pool) -> InstanceIdentity:
        if self.start_error:
            raise self.start_error
        if name in self.alive:
            await self.kill_instance(name)
        self.alive[name] = FakeInstance(pool)
        try:
            await self.may_serve.wait()
        except asyncio.CancelledError:
            await self.kill_instance(name)
            raise
        self.alive[name].serves = True
        return self._identity(name)

    def instance_names(self) -> set[str]:
        return set(self.alive)

    async def instances(self) -> list[InstanceIdentity]:
        return [self._identity(n) for n, i in self.alive.items() if i.serves and not i.hangs]

    def _identity(self, name: str) -> InstanceIdentity:
        return InstanceIdentity(name, name, self.alive[name].named)

    async def loss_cause(self, name: str) -> str:
        return "it hangs" if name in self.alive else "it was killed"

    def pool(self, identity: InstanceIdentity) -> Pool:
        return self.alive[identity.name].pool

    async def kill_instance(self, name: str) -> None:
        self.killed.append(name)
        self.alive.pop(name, None)

    async def deploy_cell(self, name: str) -> None:
        if "deploy" in self.failing:
            raise DeployError("no memory")
        self.deployed.add(name)

    async def delete_cell(self, name: str) -> None:
        self.deployed.discard(name)

    @property
    def cells(self) -> frozenset[str]:
        return frozenset(self.deployed)

    # -- the admin API

    async def report(self) -> Report:
        self._may_fail("report")
        return Report(tuple(self._cell(cell) for cell in sorted(self.deployed)))

    def _cell(self, cell: str) -> CellReport:
        inside = {n: i for n, i in self.alive.items() if i.cell == cell and not i.hangs}
        reports = tuple(
            InstanceReport(
                name,
                i.pool,
                "http://a",
                InstanceStatus(1, num_running=i.running, draining=i.draining),
                0.0,
                0,
                i.draining,
            )
            for name, i in inside.items()
        )
        return CellReport(CellView(cell, tuple(inside)), reports)

    async def adopt(self, cell: str, handle: str) -> None:
        self._may_fail("adopt")
        assert cell in self.deployed
        self.alive[handle].cell = self.alive[handle].named = cell

    async def detach(self, cell: str, instance: str) -> None:
        self.alive[instance].cell = None
        self.released.append(instance)

    async def migrate(
        self, instance: str, from_cell: str, to_cell: str, as_pool: Pool | None
    ) -> None:
        assert self.alive[instance].cell == from_cell and to_cell in self.deployed
        self._may_fail("migrate")
        self.moved.append(instance)
        self.alive[instance].cell = self.alive[instance].named = to_cell
        self.alive[instance].pool = as_pool or self.alive[instance].pool

    async def drain(self, cell: str, instance: str) -> None:
        assert self.alive[instance].cell == cell
        self._may_fail("drain")
        self.alive[instance].draining = True


@dataclass
class Scene:
    world: FakeCluster
    reconciler: Reconciler
    events: list[str]
    task: asyncio.Task[None]

    def ask_for(self, instances: int, ratio: float = 0.0) -> None:
        self.reconciler.desired = DesiredFleet(instances, Bounds(2, 4), ratio)

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                assert not self.task.done(), self.task.exception()
                await asyncio.sleep(0)

    async def rounds(self, count: int = 5) -> None:
        for _ in range(50 * count):
            await asyncio.sleep(0)

    def cells(self) -> dict[str, int]:
        sizes = dict.fromkeys(self.world.deployed, 0)
        for instance in self.world.alive.values():
            if instance.cell:
                sizes[instance.cell] += 1
        return sizes
