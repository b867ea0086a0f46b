"""From what is wished to what runs: observe, plan, apply, again and again.

Level-triggered: every round looks at what is there and carries out the plan's next commands. What
takes long (an instance's start, a drain) goes on beside the rounds, and counts as what it will be.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from macroserve.core.scaling.commands import Add, Cell, Command, Merge, Remove, SetPriority, Split
from macroserve.core.scaling.mitosis import Bounds, plan
from macroserve.core.views import Pool
from macroserve.serving.admin_client import AdminClient, AdminError, Report
from macroserve.serving.ray_cluster import RayCluster

ROUND_S = 0.5
DRAIN_BUDGET_S = 120.0
"""After this a draining instance is stopped; what still runs there goes on elsewhere."""
MAX_START_FAILURES = 3
ORDER_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Wish:
    instances: int
    bounds: Bounds
    high_priority_ratio: float


class StartError(Exception):
    """Instances fail to start, again and again; the message is the last one's."""


class Reconciler:
    """on_event: told what is done, a sentence each."""

    def __init__(
        self,
        cluster: RayCluster,
        admin: AdminClient,
        wish: Wish,
        on_event: Callable[[str], None],
    ) -> None:
        self.wish = wish
        self._cluster = cluster
        self._admin = admin
        self._on_event = on_event
        self._starting: dict[str, tuple[str, Pool]] = {}
        self._start_tasks: dict[str, asyncio.Task[None]] = {}
        self._draining: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._failure: BaseException | None = None

    def begin(self, cell: str) -> None:
        """Start the first instances while the servers that will know them are on their way."""
        wish = self.wish
        for command in plan([Cell(cell)], wish.instances, wish.bounds, wish.high_priority_ratio):
            if isinstance(command, Add):
                self._add(cell, command)

    async def run(self) -> None:
        """Until cancelled; raises StartError when instances cannot be started."""
        try:
            while True:
                # An ingress or a cell scheduler may be on its way up: look again.
                with contextlib.suppress(AdminError):
                    await self.round()
                await asyncio.sleep(ROUND_S)
        finally:
            for task in self._tasks:
                task.cancel()

    async def round(self) -> tuple[Command, ...]:
        """One look and the commands that it led to."""
        if self._failures >= MAX_START_FAILURES:
            raise StartError(_cause(self._failure)) from self._failure
        cell_names = await self._cluster.cells()
        report = await self._admin.report()
        if {r.cell.name for r in report.cells} != cell_names:
            return ()  # a cell scheduler is on its way up: its members are not known
        if await self._adopt_strays(report):
            return ()
        wish = self.wish
        commands = plan(
            self._planned_cells(report),
            wish.instances,
            wish.bounds,
            wish.high_priority_ratio,
            {i.name: i.status.remaining_tokens for r in report.cells for i in r.instances},
            self._draining,
        )
        for command in commands:
            self._on_event(_sentence(command))
            await self._apply(command, report)
        return commands

    def _planned_cells(self, report: Report) -> list[Cell]:
        """Cells as they will be once all that is under way is done."""
        members: dict[str, list[tuple[str, Pool]]] = {r.cell.name: [] for r in report.cells}
        for cell_report in report.cells:
            for instance in cell_report.instances:
                if instance.name not in self._draining:
                    members[cell_report.cell.name].append((instance.name, instance.pool))
        present = {name for cell in members.values() for name, _ in cell}
        for name, (cell, pool) in self._starting.items():
            if name not in present:
                members.setdefault(cell, []).append((name, pool))
        return [
            Cell(
                cell,
                tuple(name for name, _ in instances),
                tuple(name for name, pool in instances if pool is Pool.HP),
            )
            for cell, instances in members.items()
        ]

    async def _adopt_strays(self, report: Report) -> bool:
        """Take back living instances that no cell holds, because a move was cut short or the cell
        lost sight of them: into the cell that they name, else into the smallest. Whether any
        came back; one that does not answer is left to be replaced under its name."""
        known = {i.name for r in report.cells for i in r.instances}
        known |= self._draining | set(self._starting)
        if not (await self._cluster.instance_names()) - known:
            return False
        adopted = False
        sizes = {r.cell.name: len(r.instances) for r in report.cells}
        for identity in await self._cluster.instances():
            if identity.name not in known and sizes:
                cell = (
                    identity.cell if identity.cell in sizes else min(sizes, key=sizes.__getitem__)
                )
                with contextlib.suppress(AdminError):
                    await self._admin.adopt(cell, identity.handle)
                    adopted = True
        return adopted

    async def _apply(self, command: Command, report: Report) -> None:
        match command:
            case Add(cell=cell):
                self._add(cell, command)
            case Remove(instance=name) if name in self._starting:
                self._start_tasks[name].cancel()
            case Remove(instance=name):
                self._draining.add(name)
                self._background(self._remove(name))
            case Split(cell=cell, new_cell=new_cell, instances=instances):
                await self._cluster.deploy_cell(new_cell)
                await self._move(cell, new_cell, set(instances))
            case Merge(source=source, into=into):
                members = next(r for r in report.cells if r.cell.name == source).instances
                await self._move(source, into, {i.name for i in members} | set(self._starting))
                await self._cluster.delete_cell(source)
            case SetPriority(instance=name, pool=pool):
                await self._set_pool(name, pool)

    def _add(self, cell: str, command: Add) -> None:
        name = command.instance
        self._starting[name] = (cell, command.pool)
        self._start_tasks[name] = self._background(self._start(name, command.pool))

    async def _move(self, source: str, target: str, instances: set[str]) -> None:
        for name in sorted(instances):
            if name in self._starting:
                cell, pool = self._starting[name]
                self._starting[name] = (target if cell == source else cell, pool)
            else:
                await _retry(lambda name=name: self._admin.migrate(name, source, target))

    async def _set_pool(self, name: str, pool: Pool) -> None:
        if name in self._starting:
            self._starting[name] = (self._starting[name][0], pool)
        elif cell := await self._cell_of(name):
            await self._admin.set_pool(cell, name, pool)

    async def _start(self, name: str, pool: Pool) -> None:
        try:
            identity = await self._cluster.start_instance(name, pool)
            await _retry(lambda: self._admin.adopt(self._starting[name][0], identity.handle))
            cell, wished_pool = self._starting[name]
            if wished_pool != pool:
                await self._admin.set_pool(cell, name, wished_pool)
            self._failures = 0
            self._on_event(f"{name} serves in {cell}.")
        except AdminError:
            pass  # it lives, so the next round adopts it
        except Exception as error:
            # Whatever the engine raised: a bad model, no memory, a dead process.
            self._failures += 1
            self._failure = error
            self._on_event(f"{name} did not start: {_cause(error)}")
        finally:
            del self._starting[name], self._start_tasks[name]

    async def _remove(self, name: str) -> None:
        """Out of the rotation, drained, stopped (two phases, so that nothing is cut off)."""
        give_up = asyncio.get_running_loop().time() + DRAIN_BUDGET_S
        while asyncio.get_running_loop().time() < give_up:
            with contextlib.suppress(AdminError):
                if not await self._drained(name):
                    await asyncio.sleep(ROUND_S)
                    continue
                break
        with contextlib.suppress(AdminError):
            if cell := await self._cell_of(name):
                await self._admin.release(cell, name)
        await self._cluster.kill_instance(name)
        self._draining.discard(name)
        self._on_event(f"{name} has drained and is gone.")

    async def _drained(self, name: str) -> bool:
        for report in (await self._admin.report()).cells:
            for instance in report.instances:
                if instance.name == name:
                    if not instance.draining:
                        await self._admin.drain(report.cell.name, name)
                        return False
                    status = instance.status
                    return not (status.num_running + status.num_waiting + instance.in_flight)
        return True

    async def _cell_of(self, name: str) -> str | None:
        for report in (await self._admin.report()).cells:
            if any(instance.name == name for instance in report.instances):
                return report.cell.name
        return None

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _retry(call: Callable[[], Awaitable[Any]]) -> None:
    """Again until it works: an ingress may be on its way up, or has yet to learn of a new cell."""
    give_up = asyncio.get_running_loop().time() + ORDER_TIMEOUT_S
    while True:
        try:
            await call()
            return
        except AdminError:
            if asyncio.get_running_loop().time() > give_up:
                raise
            await asyncio.sleep(0.1)


def _cause(error: BaseException | None) -> str:
    """What the instance itself raised, without the trace of how it came here."""
    return str(getattr(error, "cause", None) or error).strip().splitlines()[0]


def _sentence(command: Command) -> str:
    match command:
        case Add(cell=cell, instance=name, pool=pool):
            done = f"Add {name} ({pool}) to {cell}"
        case Remove(cell=cell, instance=name):
            done = f"Remove {name} from {cell}"
        case Split(cell=cell, new_cell=new_cell, instances=instances):
            done = f"Split {cell}: {', '.join(instances)} to {new_cell}"
        case Merge(source=source, into=into):
            done = f"Merge {source} into {into}"
        case SetPriority(instance=name, pool=pool):
            done = f"Move {name} to pool {pool}"
    return f"{done}. {command.reason}"
