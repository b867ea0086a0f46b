"""The reconciler against a cluster that is played: what it observes, and what it does about it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from macroserve.api.client import AdminError
from macroserve.api.messages import CellReport, InstanceIdentity, InstanceReport, Report
from macroserve.core.backoff import Backoff
from macroserve.core.scaling.fleet import DesiredFleet
from macroserve.core.scaling.mitosis import Bounds
from macroserve.core.status import CellView, InstanceStatus, Pool
from macroserve.local import reconciler as reconcile
from macroserve.local.reconciler import Reconciler, StartError
from macroserve.serving.ray.cells import DeployError


@dataclass
class Instance:
    pool: Pool
    cell: str | None = None
    """Which one holds it."""
    named: str | None = None
    """Which one it names."""
    serves: bool = False
    hangs: bool = False
    draining: bool = False
    running: int = 0


@dataclass
class Played:
    """Both what the reconciler has of Ray, and the admin API. failing: names of calls."""

    alive: dict[str, Instance] = field(default_factory=dict)
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
        self.alive[name] = Instance(pool)
        try:
            await self.may_serve.wait()
        except asyncio.CancelledError:
            await self.kill_instance(name)
            raise
        self.alive[name].serves = True
        return self._identity(name)

    async def instance_names(self) -> set[str]:
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

    async def cells(self) -> frozenset[str]:
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
    world: Played
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


Story = Callable[[Scene], Awaitable[None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[Scene]]:
    monkeypatch.setattr(reconcile, "ROUND_S", 0)

    async def begin(instances: int, world: Played | None = None) -> Scene:
        world = world or Played()
        events: list[str] = []
        both: Any = world
        desired = DesiredFleet(instances, Bounds(2, 4), 0.0)
        reconciler = Reconciler(both, both, desired, 0.1, events.append, Backoff(0.0, 0.0))
        return Scene(world, reconciler, events, asyncio.create_task(reconciler.run()))

    return begin


async def test_instances_start_and_join_a_cell(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    assert "instance-2 serves in cell-0." in scene.events
    assert scene.events.count("Cell scheduler cell-0 is up.") == 1
    before = list(scene.events)
    await scene.rounds()
    assert scene.events == before, "as desired, there is nothing to say"
    scene.task.cancel()


async def test_they_start_before_anything_answers(play) -> None:
    scene = await play(3, Played(failing={"report"}))
    await scene.until(lambda: len(scene.world.alive) == 3)
    scene.world.failing.clear()
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    scene.task.cancel()


async def test_up_and_down(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    scene.ask_for(5)
    await scene.until(lambda: sorted(scene.cells().values()) == [2, 3])
    assert sum("Split cell-0" in event for event in scene.events) == 1
    for instance in scene.world.alive.values():
        instance.running = 1
    scene.ask_for(3)
    await scene.until(lambda: sum(i.draining for i in scene.world.alive.values()) == 2)
    await scene.rounds()
    assert len(scene.world.alive) == 5, "what drains has work"
    for instance in scene.world.alive.values():
        instance.running = 0
    await scene.until(lambda: scene.cells() == {"cell-0": 3} or scene.cells() == {"cell-1": 3})
    assert len(scene.world.alive) == 3
    assert sorted(scene.world.released) == sorted(scene.world.killed)
    # Their names are given out again, and with them nothing of what was.
    scene.ask_for(5)
    await scene.until(lambda: sorted(scene.cells().values()) == [2, 3])
    await scene.rounds()
    assert len(scene.world.killed) == 2
    scene.task.cancel()


async def test_instances_start_where_they_are_to_be(play) -> None:
    scene = await play(7)
    await scene.until(lambda: sorted(scene.cells().values()) == [3, 4])
    await scene.rounds()
    assert scene.world.moved == []
    assert sum("Split" in event for event in scene.events) == 1
    scene.task.cancel()


async def test_a_drain_has_an_end(play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "drain_budget_s", lambda *_: -1.0)
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    for instance in scene.world.alive.values():
        instance.running = 1
    scene.ask_for(2)
    await scene.until(lambda: len(scene.world.alive) == 2)
    scene.task.cancel()


async def test_a_failed_order_is_given_again_and_told_of_once(play) -> None:
    scene = await play(4, Played(failing={"adopt"}))
    await scene.until(lambda: all(i.serves for i in scene.world.alive.values()))
    await scene.rounds()
    assert scene.cells() == {"cell-0": 0}
    scene.world.failing = {"migrate", "drain"}
    await scene.until(lambda: scene.cells() == {"cell-0": 4})
    scene.reconciler.desired = DesiredFleet(4, Bounds(1, 2), 0.0)
    await scene.until(lambda: "cell-1" in scene.world.deployed)
    await scene.rounds()
    assert scene.world.moved == []
    scene.world.failing = {"drain"}
    await scene.until(lambda: scene.cells() == {"cell-0": 2, "cell-1": 2})
    assert sum("Split" in event for event in scene.events) == 1
    scene.ask_for(3)
    await scene.rounds()
    assert len(scene.world.alive) == 4
    scene.world.failing = set()
    await scene.until(lambda: len(scene.world.alive) == 3)
    scene.task.cancel()


async def test_what_drains_is_not_taken_back(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    for instance in scene.world.alive.values():
        instance.running = 1
    scene.ask_for(2)
    await scene.until(lambda: any(i.draining for i in scene.world.alive.values()))
    leaving = next(i for i in scene.world.alive.values() if i.draining)
    scene.ask_for(3)
    leaving.cell = None
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    assert leaving not in scene.world.alive.values()
    scene.task.cancel()


async def test_a_dead_instance_is_replaced(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    del scene.world.alive["instance-1"]
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    assert set(scene.world.alive) == {"instance-0", "instance-1", "instance-2"}
    assert [e for e in scene.events if "gone" in e] == ["instance-1 is gone: it was killed."]
    scene.task.cancel()


async def test_a_hung_instance_is_replaced_under_its_name(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    hung = scene.world.alive["instance-1"]
    hung.hangs = True
    await scene.until(lambda: scene.cells() == {"cell-0": 3} and "instance-1" in scene.world.killed)
    assert scene.world.alive["instance-1"] is not hung
    assert scene.world.killed == ["instance-1"]
    assert [e for e in scene.events if "gone" in e] == ["instance-1 is gone: it hangs."]
    scene.task.cancel()


async def test_an_instance_that_is_not_wanted_any_more_is_told_of_as_such(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    scene.ask_for(2)
    await scene.until(lambda: len(scene.world.alive) == 2)
    await scene.rounds()
    gone = [event for event in scene.events if "is gone" in event]
    assert len(gone) == 1 and "killed" not in gone[0] and "hangs" not in gone[0]
    scene.task.cancel()


async def test_instances_are_not_told_lost_while_no_cell_answers(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    scene.world.failing = {"report"}
    await scene.rounds()
    assert not any("is gone" in event for event in scene.events)
    scene.task.cancel()


async def test_an_instance_that_its_cell_lost_comes_back_into_it_with_its_pool(play) -> None:
    scene = await play(5)
    await scene.until(lambda: sorted(scene.cells().values()) == [2, 3])
    scene.ask_for(5, ratio=0.5)
    await scene.until(lambda: sum(i.pool is Pool.HP for i in scene.world.alive.values()) == 3)
    pools = {name: (i.cell, i.pool) for name, i in scene.world.alive.items()}
    lost = next(i for i in scene.world.alive.values() if i.cell == "cell-1" and i.pool is Pool.HP)
    lost.cell = None
    await scene.until(lambda: lost.cell)
    assert {name: (i.cell, i.pool) for name, i in scene.world.alive.items()} == pools
    assert scene.world.killed == []
    scene.task.cancel()


async def test_what_is_not_wanted_any_more_need_not_start(play) -> None:
    scene = await play(2)
    await scene.until(lambda: scene.cells() == {"cell-0": 2})
    scene.world.may_serve.clear()
    scene.ask_for(4)
    await scene.until(lambda: len(scene.world.alive) == 4)
    scene.ask_for(2)
    await scene.until(lambda: len(scene.world.alive) == 2)
    assert all(i.serves for i in scene.world.alive.values())
    scene.task.cancel()


async def test_while_a_cell_is_away_a_dead_instance_is_replaced(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    scene.world.failing = {"report"}
    del scene.world.alive["instance-1"]
    await scene.until(lambda: "instance-1" in scene.world.alive)
    scene.task.cancel()


async def test_nothing_is_stopped_while_a_cell_is_away(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    scene.world.failing = {"report"}
    scene.ask_for(2)
    await scene.rounds()
    assert scene.world.killed == [] and len(scene.world.alive) == 3
    scene.world.failing = set()
    await scene.until(lambda: len(scene.world.alive) == 2)
    scene.task.cancel()


async def test_instances_that_never_start_end_it(play) -> None:
    error = ValueError("no such model\nat all")
    scene = await play(1, Played(start_error=error))
    with pytest.raises(StartError, match=r"^no such model at all$"):
        await scene.task
    told = [event for event in scene.events if "instance-0 did not start" in event]
    assert len(told) == 1 and "no such model at all (It is tried again in" in told[0]
    assert sum("Add instance-0" in event for event in scene.events) == 1


async def test_cells_that_never_start_end_it(play) -> None:
    scene = await play(1, Played(failing={"deploy"}))
    with pytest.raises(StartError, match="no memory"):
        await scene.task


@pytest.mark.parametrize("kind", ["more instances", "a killed instance", "another cell"])
async def test_failed_starts_after_the_first_never_end_what_serves(play, kind: str) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    calls = 0
    start = scene.world.start_instance

    async def failing(name: str, pool: Pool) -> InstanceIdentity:
        nonlocal calls
        calls += 1
        raise RuntimeError("no memory")

    if kind == "another cell":
        scene.world.failing = {"deploy"}
        scene.ask_for(5)
        await scene.rounds(20)
        assert set(scene.world.deployed) == {"cell-0"}
    else:
        scene.world.start_instance = failing  # type: ignore[method-assign]
        if kind == "a killed instance":
            del scene.world.alive["instance-1"]
        else:
            scene.ask_for(4)
        await scene.until(lambda: calls > 20)
    assert not scene.task.done()
    assert sum("no memory" in event for event in scene.events) == 1
    scene.world.failing = set()
    scene.world.start_instance = start  # type: ignore[method-assign]
    wanted = scene.reconciler.desired.desired_instances
    await scene.until(lambda: sum(scene.cells().values()) == wanted)
    scene.task.cancel()


async def test_a_round_that_fails_whatever_the_reason_is_told_once_and_ends_nothing(play) -> None:
    scene = await play(2)
    await scene.until(lambda: scene.cells() == {"cell-0": 2})
    cells = scene.world.cells

    async def gone() -> frozenset[str]:
        raise ConnectionError("the control store is away")

    scene.world.cells = gone  # type: ignore[method-assign]
    await scene.rounds(20)
    assert not scene.task.done()
    assert sum("control store is away" in event for event in scene.events) == 1
    scene.world.cells = cells  # type: ignore[method-assign]
    scene.ask_for(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    scene.task.cancel()


async def test_failed_first_starts_end_nothing_while_another_instance_is_still_starting(
    play,
) -> None:
    world = Played()
    world.may_serve.clear()
    start, calls = world.start_instance, 0

    async def one_fails(name: str, pool: Pool) -> InstanceIdentity:
        nonlocal calls
        if name == "instance-0":
            return await start(name, pool)
        calls += 1
        raise RuntimeError("no memory")

    world.start_instance = one_fails  # type: ignore[method-assign]
    scene = await play(2, world)
    await scene.until(lambda: calls > 10)
    world.may_serve.set()
    await scene.until(lambda: scene.cells() == {"cell-0": 1})
    await scene.rounds(10)
    assert not scene.task.done()
    scene.task.cancel()
