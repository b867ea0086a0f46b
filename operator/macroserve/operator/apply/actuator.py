"""Executor of a plan's actions on pods and cells.

Actions are idempotent. A failed one is retried in the next reconcile and blocks only dependent
    actions: those on the same instance, and the deletion of cells that an instance was to leave.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

import aiohttp

from macroserve.api.client import AdminClient, AdminError, identity
from macroserve.core.scaling.fleet import (
    Action,
    Attach,
    DeleteCell,
    DeployCell,
    Drain,
    Migrate,
    Relabel,
    Start,
    Stop,
    drain_budget_s,
)
from macroserve.core.status import Pool
from macroserve.operator.apply.owned_objects import refused
from macroserve.operator.apply.tls import Tls
from macroserve.operator.apply.tokens import TokenSecret
from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import Api, ApiError
from macroserve.operator.k8s.kinds import POD, is_owned
from macroserve.operator.k8s.times import rfc3339
from macroserve.operator.observe.observation import InstancePod, Observation, Problem
from macroserve.operator.plan.avoidance import avoided_nodes, node_names
from macroserve.operator.plan.fleet import (
    Detach,
    ForceDelete,
    RepairAction,
    RetryDrain,
    control_url,
    located,
)
from macroserve.operator.render.context import RenderContext
from macroserve.operator.render.instance import instance_pod

DRAINED_GRACE_S = 30
"""Grace period of a pod that has drained or used up its budget. Others keep their own."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Actions that were carried out, and why the others were not."""

    done: tuple[Action, ...]
    problems: tuple[Problem, ...]


class _TakenError(Exception):
    """The pod's name is taken by another owner's object."""


@dataclass(frozen=True, slots=True)
class Actuator:
    """Executor of the actions of one reconcile."""

    api: Api
    http: aiohttp.ClientSession
    render_context: RenderContext
    observation: Observation
    tokens: TokenSecret
    head: AdminClient | None
    """None while the head is unreachable; actions that need it raise AdminError."""
    tls: Tls | None = None

    async def carry_out(self, actions: Iterable[Action | RepairAction]) -> Effect:
        """Carry out the actions in order.

        Raises ApiError if the API server does not answer or reports a conflict.
        """
        done: list[Action] = []
        problems: list[Problem] = []
        failed: set[str] = set()
        for action in actions:
            if failed & _names(action) or (failed and isinstance(action, DeleteCell)):
                continue
            try:
                await self._carry_out(action)
            except ApiError as error:
                problems.append(refused(f"the pod of {_subject(action)}", error))
                failed.add(_subject(action))
            except _TakenError as error:
                problems.append(Problem("NameTaken", str(error)))
                failed.add(_subject(action))
            except AdminError as error:
                problems.append(Problem("OrderFailed", str(error)))
                failed.add(_subject(action))
            else:
                if isinstance(action, Action):
                    done.append(action)
        return Effect(tuple(done), tuple(problems))

    async def _carry_out(self, action: Action | RepairAction) -> None:
        match action:
            case DeployCell(cell=cell):
                await self._to_head().deploy_cell(cell)
            case DeleteCell(cell=cell):
                await self._to_head().delete_cell(cell)
            case Start(instance=name, cell=cell, pool=pool):
                await self._start(name, cell, pool)
            case Relabel(instance=name, cell=cell, pool=pool):
                await self._label(name, cell, pool)
            case Attach(instance=name, cell=cell):
                await self._attach(name, cell)
            case Migrate(instance=name, to_cell=cell, as_pool=pool):
                await self._migrate(name, cell, pool)
            case Drain(instance=name, cell=cell):
                await self._drain(name, cell)
            case RetryDrain(instance=name, cell=cell):
                await self._to_head().drain(cell, name)
            case Detach(instance=name, cell=cell):
                await self._to_head().detach(cell, name)
            case Stop(instance=name):
                await self._stop(name)
            case ForceDelete(instance=name):
                await self.api.delete(POD, self.render_context.namespace, self._pod(name).name, 0)
            case _:
                assert_never(action)

    async def _start(self, name: str, cell: str, pool: Pool) -> None:
        excluded = node_names(avoided_nodes(self.observation))
        pod = instance_pod(self.render_context, name, cell, pool, excluded)
        try:
            await self.api.create(POD, pod)
        except ApiError as error:
            if not error.is_conflict:
                raise
            # An earlier reconcile created it and has not seen it yet, or somebody else did.
            full_name = names.pod_name(self.render_context.name, name)
            found = await self.api.get(POD, self.render_context.namespace, full_name)
            if found and not is_owned(found, self.render_context.uid):
                message = f"The pod {full_name} already exists and belongs to another object."
                raise _TakenError(message) from error

    async def _attach(self, name: str, cell: str) -> None:
        pod = self._pod(name)
        if pod.address is None:
            raise AdminError(f"{name} has no address yet.")
        peer = self.tls.peer if self.tls else None
        found = await identity(self.http, control_url(pod), name, self.tokens.ring, peer)
        if found.name != name:
            # The address may belong to another pod before this pod is known to be gone.
            raise AdminError(f"The address of {name} belongs to {found.name}.")
        await self._to_head().adopt(cell, found.handle)

    async def _migrate(self, name: str, cell: str, pool: Pool) -> None:
        found = located(self.observation, self._pod(name))
        if found is None:
            raise AdminError(f"No cell has {name}.")
        holder, report = found
        new_pool = None if report.pool is pool else pool
        await self._to_head().migrate(name, holder.cell.name, cell, new_pool)
        await self._label(name, cell, pool)

    async def _drain(self, name: str, cell: str) -> None:
        """Mark the pod, then order the drain; the order is repeated until it completes."""
        pod = self._pod(name)
        found = located(self.observation, pod)
        status = found[1].status if found else None
        budget_s = drain_budget_s(
            status.remaining_tokens if status else 0,
            status.num_running if status else 0,
            self.render_context.manifest.slo.tpot_s,
        )
        marks = {
            names.DRAINING_SINCE: rfc3339(self.observation.now),
            names.DRAIN_BUDGET: f"{budget_s:.0f}",
        }
        await self._mark(name, {"annotations": marks})
        await self._to_head().drain(cell, name)

    async def _stop(self, name: str) -> None:
        pod = self._pod(name)
        found = located(self.observation, pod)
        if found and self.head:
            # A cell that does not answer notices the missing instance itself.
            with contextlib.suppress(AdminError):
                await self.head.detach(found[0].cell.name, name)
        grace_s = DRAINED_GRACE_S if found and pod.draining_since else None
        await self.api.delete(POD, self.render_context.namespace, pod.name, grace_s)

    async def _label(self, name: str, cell: str, pool: Pool) -> None:
        """Label the pod, for restarts of its container and for a head that lost its cells."""
        await self._mark(name, {"labels": {names.CELL: cell, names.POOL: pool.value}})

    async def _mark(self, name: str, metadata: dict[str, dict[str, str]]) -> None:
        patch = {"metadata": metadata}
        await self.api.merge(POD, self.render_context.namespace, self._pod(name).name, patch)

    def _pod(self, name: str) -> InstancePod:
        return next(pod for pod in self.observation.pods if pod.instance == name)

    def _to_head(self) -> AdminClient:
        if self.head is None:
            raise AdminError("The head does not answer.")
        return self.head


def _subject(action: Action | RepairAction) -> str:
    """Return the instance of an action, or the cell that it adds or removes."""
    return action.cell if isinstance(action, DeployCell | DeleteCell) else action.instance


def _names(action: Action | RepairAction) -> set[str]:
    match action:
        case Migrate(instance=name, to_cell=cell):
            return {name, cell}
        case Stop(instance=name) | ForceDelete(instance=name):
            return {name}
        case DeployCell(cell=cell) | DeleteCell(cell=cell):
            return {cell}
        case _:
            return {action.instance, action.cell}
