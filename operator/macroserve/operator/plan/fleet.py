"""Conversion of an Observation to the fleet that ``core`` plans with, and repair actions.

Lost nodes need no special case: Kubernetes marks their pods not Ready and deletes them, each is
    replaced under another name, and the object that only its kubelet would remove is force-deleted.
    If only the kubelet is dead, the instance first finishes its requests.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from macroserve.api.messages import CellReport, InstanceReport
from macroserve.core.scaling.fleet import Fleet, Member, MemberState, Relabel
from macroserve.operator.k8s import names
from macroserve.operator.observe.observation import InstancePod, Observation
from macroserve.operator.observe.problems import NODE_LOST
from macroserve.operator.plan.avoidance import misplaced


def fleet(observation: Observation) -> Fleet:
    """Return the fleet.

    While some cells are unreachable, instances that have served count as joined, even if they miss
        a probe: only an instance known to be outside a cell is changed.
    """
    cells = _cells(observation)
    return Fleet(
        members=tuple(_member(observation, pod, cells) for pod in observation.pods),
        cells=cells,
        outdated_ingresses=bool(observation.ingress and observation.ingress.has_outdated_pods),
    )


@dataclass(frozen=True, slots=True)
class RetryDrain:
    """Repeat an instance's drain order, which was lost, or whose pod something else ends."""

    instance: str
    cell: str


@dataclass(frozen=True, slots=True)
class Detach:
    """Remove from a cell an instance without a pod, or one that is also in another cell."""

    instance: str
    cell: str


@dataclass(frozen=True, slots=True)
class ForceDelete:
    """Delete the object of a terminating pod whose node does not respond."""

    instance: str


RepairAction = Relabel | RetryDrain | Detach | ForceDelete
"""Relabel: a pod's labels differ from the cell or pool in its scheduler's report."""


def repair_actions(observation: Observation) -> Iterator[RepairAction]:
    """Return actions that complete interrupted reconciles or revert other writers' changes."""
    pods = {pod.instance: pod for pod in observation.pods}
    for cell in observation.cells:
        for found in cell.instances:
            pod = pods.get(found.name)
            holder = located(observation, pod) if pod else None
            if pod is None or holder is None or holder[0] is not cell:
                yield Detach(found.name, cell.cell.name)
                continue
            if (pod.draining_since or pod.deleting) and not found.draining:
                yield RetryDrain(found.name, cell.cell.name)
            if not pod.deleting and (pod.cell, pod.pool) != (cell.cell.name, found.pool):
                yield Relabel(found.name, cell.cell.name, found.pool)
    cells = _cells(observation)
    for pod in observation.pods:
        found = located(observation, pod)
        is_idle = found[1].idle if found else cells is not None
        if pod.terminating and _is_lost(pod) and is_idle:
            yield ForceDelete(pod.instance)


def located(observation: Observation, pod: InstancePod) -> tuple[CellReport, InstanceReport] | None:
    """Return the cell that holds this very pod, not an earlier one of the same name."""
    found = observation.located(pod.instance)
    return found if found and _is_same(pod, found[1]) else None


def _cells(observation: Observation) -> frozenset[str] | None:
    report, running = observation.report, observation.running_cells
    if report is None or running != {cell.cell.name for cell in report.cells}:
        return None
    return running


def _member(observation: Observation, pod: InstancePod, cells: frozenset[str] | None) -> Member:
    why_misplaced = misplaced(observation, pod)
    state = _state(pod, why_misplaced)
    found = located(observation, pod)
    started = pod.ready or pod.started
    unknown = cells is None and started and state in (MemberState.SERVING, MemberState.STARTING)
    return Member(
        name=pod.instance,
        state=state,
        pool=found[1].pool if found else pod.pool,
        cell=found[0].cell.name if found else pod.cell,
        joined=found is not None or unknown,
        draining=_draining(pod, found),
        drained=_drained(observation, pod, found, cells),
        outdated=pod.revision != observation.revision,
        failure=why_misplaced or "It has failed.",
        started=started,
        remaining_tokens=found[1].status.remaining_tokens if found else 0,
    )


def _state(pod: InstancePod, misplaced: str | None) -> MemberState:
    if pod.deleting:
        return MemberState.LEAVING
    if pod.failed or misplaced:
        return MemberState.FAILED
    return MemberState.SERVING if pod.ready and not pod.unreachable else MemberState.STARTING


def _draining(pod: InstancePod, found: tuple[CellReport, InstanceReport] | None) -> bool:
    """Return whether the instance drains by its mark or its report; the cache may lag behind."""
    if found is None:
        return pod.draining_since is not None
    return pod.draining_since is not None or pod.deleting or found[1].draining


def _drained(
    observation: Observation,
    pod: InstancePod,
    found: tuple[CellReport, InstanceReport] | None,
    cells: frozenset[str] | None,
) -> bool:
    """Return whether the instance is idle without new requests, released, or past its budget."""
    if found is not None and found[1].draining and found[1].idle:
        return True
    if pod.draining_since is None:
        return False
    if found is None and cells is not None and pod.cell in cells:
        return True
    budget = timedelta(seconds=pod.drain_budget_s)
    return observation.now - pod.draining_since > budget


def _is_lost(pod: InstancePod) -> bool:
    return pod.problem is not None and pod.problem.reason == NODE_LOST


def _is_same(pod: InstancePod, found: InstanceReport) -> bool:
    return pod.address is None or found.address == _url(pod, names.INSTANCE_PORT)


def control_url(pod: InstancePod) -> str:
    return _url(pod, names.CONTROL_PORT)


def _url(pod: InstancePod, port: int) -> str:
    return f"{'https' if pod.tls else 'http'}://{pod.address}:{port}"
