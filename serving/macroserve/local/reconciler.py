"""Reconcile of a deployment on this machine: observe, plan, apply.

It is level-triggered: ``core.scaling.fleet`` plans the next actions from the present state, and a
failed reconcile is continued by the next one. Long actions (an instance's start, a drain) run
concurrently.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import assert_never

from macroserve.api.client import AdminClient, AdminError
from macroserve.api.messages import InstanceIdentity, InstanceReport, Report
from macroserve.core.backoff import Backoff, Retries
from macroserve.core.scaling.decisions import Add, Decision, describe
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
    drain_budget_s,
    plan_actions,
)
from macroserve.core.status import Pool
from macroserve.local.cluster import LocalCluster
from macroserve.serving.causes import cause_of
from macroserve.serving.ray.cells import DeployError

RECONCILE_INTERVAL_S = 1.0
"""Each reconcile queries Ray and every cell, which is most of an idle deployment's work."""
MAX_FIRST_FAILURES = 3
"""Consecutive failed starts that end a deployment in which no instance has ever served."""
BACKOFF = Backoff()
FIRST_CELL = "cell-0"
_RECONCILE = "reconcile"
"""Key for failures of whole reconciles, distinct from instances and cells."""


class NeverServedError(Exception):
    """All starts failed; the message is the last failure's."""


class Reconciler:
    """Reconciler of a deployment with its desired fleet.

    tpot_s: target for the time per output token, seconds; it limits drains.
    on_event: called with a sentence for each action.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        admin: AdminClient,
        desired: DesiredFleet,
        tpot_s: float,
        on_event: Callable[[str], None],
        backoff: Backoff = BACKOFF,
    ) -> None:
        self.desired = desired
        self._cluster = cluster
        self._admin = admin
        self._tpot_s = tpot_s
        self._on_event = on_event
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._places: dict[str, tuple[str, Pool]] = {}
        """Cells and pools of instances that are to join."""
        self._drain_ends_s: dict[str, float] = {}
        # As last observed: instances in cells, with their cell, and those outside.
        self._inside: dict[str, tuple[str, InstanceReport]] = {}
        self._outside: dict[str, InstanceIdentity] = {}
        self._serving: set[str] = set()
        """Instances that served when last observed."""
        self._decided: tuple[Decision, ...] = ()
        self._retries = Retries(backoff)
        self._num_failures = 0
        self._has_served = False
        self._failure: Exception | None = None

    async def run(self) -> None:
        """Reconcile until cancelled.

        Raises NeverServedError if starts fail before any instance has served; later failures are
        reported, and retried with growing delays.
        """
        try:
            while not self._is_hopeless:
                try:
                    await self._change(await self._observe())
                    self._retries.succeeded(_RECONCILE)
                except AdminError:
                    pass  # an ingress, a cell or an instance is starting or ending
                except Exception as error:
                    # Ray's own processes may be down; the components continue to serve.
                    failure = self._retries.failed(_RECONCILE, cause_of(error), _now())
                    if failure.is_new:
                        self._on_event(f"The deployment cannot be managed: {failure.cause}")
                await asyncio.sleep(RECONCILE_INTERVAL_S)
            raise NeverServedError(cause_of(self._failure)) from self._failure
        finally:
            for task in self._starting.values():
                task.cancel()

    @property
    def _is_hopeless(self) -> bool:
        nothing_comes = not (self._has_served or self._starting)
        return nothing_comes and self._num_failures >= MAX_FIRST_FAILURES

    async def _change(self, fleet: Fleet) -> None:
        plan = plan_actions(fleet, self.desired)
        for decision in plan.decisions:
            is_retry = isinstance(decision, Add) and self._retries.has_failed(decision.instance)
            if decision not in self._decided and not is_retry:
                self._on_event(f"{describe(decision)}. {decision.reason}")
        self._decided = plan.decisions
        for action in plan.actions:
            await self._carry_out(action)

    # -- what is there

    async def _observe(self) -> Fleet:
        """Observe the cluster, without instances that hang, which are replaced."""
        # Instances that start to serve during this call may count in the next reconcile.
        starting = tuple(self._starting)
        alive = self._cluster.instance_names()
        self._drain_ends_s = {n: end for n, end in self._drain_ends_s.items() if n in alive}
        cells = self._cluster.cells
        report = await self._report()
        self._inside = {
            found.name: (cell.cell.name, found) for cell in report.cells for found in cell.instances
        }
        self._has_served = self._has_served or bool(self._inside)
        known = {*self._inside, *starting}
        outside = await self._cluster.instances() if alive - known else []
        self._outside = {i.name: i for i in outside if i.name not in known}
        await self._tell_lost({*self._inside, *self._outside})
        members = (
            *(self._member_inside(*place) for place in self._inside.values()),
            *(self._member_starting(name) for name in starting if name not in self._inside),
            *(self._member_outside(identity) for identity in self._outside.values()),
        )
        all_told = {cell.cell.name for cell in report.cells} == cells
        return Fleet(members, cells if all_told else None)

    async def _tell_lost(self, serving: set[str]) -> None:
        lost = self._serving - serving
        self._serving = serving
        for name in sorted(lost):
            self._on_event(f"{name} ended: {await self._cluster.loss_cause(name)}.")

    async def _report(self) -> Report:
        try:
            return await self._admin.report()
        except AdminError:
            return Report(())

    def _member_inside(self, cell: str, found: InstanceReport) -> Member:
        end_s = self._drain_ends_s.get(found.name)
        return Member(
            found.name,
            MemberState.SERVING,
            found.pool,
            cell,
            joined=True,
            draining=end_s is not None,
            drained=end_s is not None and (found.idle or _now() > end_s),
            remaining_tokens=found.status.remaining_tokens,
        )

    def _member_starting(self, name: str) -> Member:
        cell, pool = self._places[name]
        return Member(name, MemberState.STARTING, pool, cell)

    def _member_outside(self, identity: InstanceIdentity) -> Member:
        """Return an instance that serves but is in no cell.

        It has yet to join its first cell, its migration was interrupted, or its cell lost it.
        """
        name = identity.name
        named = identity.cell or FIRST_CELL, self._cluster.pool(identity)
        cell, pool = self._places.get(name, named)
        leaves = name in self._drain_ends_s
        return Member(name, MemberState.SERVING, pool, cell, draining=leaves, drained=leaves)

    # -- what is done about it

    async def _carry_out(self, action: Action) -> None:
        """Apply one action. Raises AdminError when a cell does not accept an order."""
        match action:
            case DeployCell(cell=name) | Start(instance=name) if not self._retries.may_try(
                name, _now()
            ):
                pass
            case DeployCell(cell=cell):
                await self._deploy_cell(cell)
            case Start(instance=name, cell=cell, pool=pool):
                self._places[name] = cell, pool
                self._starting[name] = asyncio.create_task(self._start(name, pool))
            case Relabel(instance=name, cell=cell, pool=pool):
                self._places[name] = cell, pool
            case Attach(instance=name, cell=cell):
                await self._attach(name, cell)
            case Migrate(instance=name, to_cell=cell, as_pool=pool):
                await self._migrate(name, cell, pool)
            case Drain(instance=name, cell=cell):
                await self._drain(name, cell)
            case Stop(instance=name, reason=reason):
                await self._stop(name, reason)
            case DeleteCell(cell=cell):
                await self._cluster.delete_cell(cell)
            case _:
                assert_never(action)

    async def _deploy_cell(self, cell: str) -> None:
        try:
            await self._cluster.deploy_cell(cell)
        except DeployError as error:
            self._failed(cell, f"Cell scheduler {cell}", error)
            return
        self._retries.succeeded(cell)
        self._on_event(f"Cell scheduler {cell} is up.")

    async def _start(self, name: str, pool: Pool) -> None:
        try:
            await self._cluster.start_instance(name, pool)
            self._retries.succeeded(name)
            self._num_failures = 0  # _has_served waits until the instance has joined a cell
        except Exception as error:
            # Engines raise many types: a bad model, no memory, a dead process.
            self._failed(name, name, error)
        finally:
            del self._starting[name]

    def _failed(self, name: str, what: str, error: Exception) -> None:
        self._num_failures += 1
        self._failure = error
        failure = self._retries.failed(name, cause_of(error), _now())
        if failure.is_new:
            self._on_event(
                f"{what} did not start: {failure.cause} "
                f"(Retry in {failure.retry_in_s:.0f} s, then with increasing delays.)"
            )

    async def _attach(self, name: str, cell: str) -> None:
        await self._admin.adopt(cell, self._outside[name].handle)
        self._places.pop(name, None)
        self._on_event(f"{name} serves in {cell}.")

    async def _migrate(self, name: str, cell: str, pool: Pool) -> None:
        from_cell, found = self._inside[name]
        await self._admin.migrate(name, from_cell, cell, None if found.pool is pool else pool)

    async def _drain(self, name: str, cell: str) -> None:
        _, found = self._inside[name]
        status = found.status
        budget_s = drain_budget_s(status.remaining_tokens, status.num_running, self._tpot_s)
        await self._admin.drain(cell, name)
        self._drain_ends_s[name] = _now() + budget_s

    async def _stop(self, name: str, reason: str) -> None:
        self._places.pop(name, None)
        if task := self._starting.get(name):
            task.cancel()  # which ends its process
            return
        if name in self._inside:
            cell, _ = self._inside[name]
            with contextlib.suppress(AdminError):
                await self._admin.detach(cell, name)
        await self._cluster.kill_instance(name)
        self._serving.discard(name)
        self._on_event(f"{name} was removed. {reason}")


def _now() -> float:
    return asyncio.get_running_loop().time()
