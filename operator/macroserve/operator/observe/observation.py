"""An observation is plain data: a MacroInstance and all that belongs to it, as one reconcile finds
it.

What is planned, reported and told follows from an Observation alone, so it can be tested without a
cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from macroserve.api.manifest import Manifest
from macroserve.api.messages import CellReport, InstanceReport, Report
from macroserve.core.status import Pool


@dataclass(frozen=True, slots=True)
class Problem:
    """The cause that keeps a pod or Deployment from running.

    Attributes:
        reason: CamelCase word as in conditions and events, such as ``Unschedulable``,
            ``ImagePullBackOff`` or ``OOMKilled``.
        message: A sentence for people.
    """

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class InstancePod:
    """The pod of an instance, as observed.

    Attributes:
        cell: Cell by the pod's label.
        pool: Pool by the pod's label.
        address: IP of the pod, once it has one.
        failed: Whether the pod has ended and the kubelet does not restart it.
        terminating: Whether the pod was told to end.
        deleting: Whether the pod terminates or belongs to an earlier MacroInstance.
        problem: Why the pod does not serve, or how it ended last.
        drain_budget_s: Seconds that its drain was given when it began.
        node: Name of its node; empty before it is scheduled.
        excluded_nodes: Nodes that its affinity excludes.
        failed_start: Its last failed start; None while it is Ready, and after it has
            served.
        unreachable: Whether it serves with TLS while the other pods have no certificate, as after
            TLS is switched off.
        tls: Whether it serves with TLS.
        created: When it was created; None for a pod that the API server has not stored.
        setup_s: Seconds from its creation until its engine's container ran first: the
            scheduler, the image, volumes, init containers. None before, and after a restart.
        started: Whether its engine runs and has generated a token, though it may not be Ready now.
    """

    instance: str
    name: str
    cell: str
    pool: Pool
    revision: str
    address: str | None = None
    ready: bool = False
    failed: bool = False
    deleting: bool = False
    terminating: bool = False
    draining_since: datetime | None = None
    drain_budget_s: float = 0.0
    problem: Problem | None = None
    uid: str = ""
    node: str = ""
    excluded_nodes: frozenset[str] = frozenset()
    failed_start: "FailedStart | None" = None
    unreachable: bool = False
    tls: bool = False
    created: datetime | None = None
    setup_s: float | None = None
    started: bool = False


@dataclass(frozen=True, slots=True)
class FailedStart:
    """The last start of an instance's pod, which ended before the pod was Ready.

    Attributes:
        num_ended: How often its container has ended so far.
        served_until: When the pod was Ready last; None if it never was, so that every start
            of it failed.
        device_error: Sentence of the device's driver; empty if the device is not the cause.
    """

    num_ended: int
    served_until: datetime | None
    device_error: str


@dataclass(frozen=True, slots=True)
class ServerState:
    """State of a Deployment of a MacroInstance: the head's or the ingresses'."""

    ready: int
    """Number of its pods that serve, of any template."""
    desired_replicas: int
    rolled_out: bool = True
    """Whether all pods are of the present template."""
    has_outdated_pods: bool = False
    """Whether pods of an earlier template serve, or finish their requests."""
    revision: str = ""
    problem: Problem | None = None

    @property
    def complete(self) -> bool:
        return self.rolled_out and self.ready >= self.desired_replicas


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of a MacroInstance and of all that belongs to it, at one moment.

    Attributes:
        now: Wall clock, with a time zone.
        revision: Revision of pods that are created now.
        head: Deployment of the head; None if there is none yet.
        ingress: Deployment of the ingresses; None if there is none yet.
        report: Report of the head; None if it does not answer.
        running_cells: Cell schedulers that run; None if the head does not answer.
        status: Status of the resource before this reconcile.
    """

    now: datetime
    name: str
    namespace: str
    uid: str
    generation: int
    deleting: bool
    manifest: Manifest
    revision: str
    pods: tuple[InstancePod, ...]
    head: ServerState | None
    ingress: ServerState | None
    report: Report | None
    running_cells: frozenset[str] | None
    status: Mapping[str, Any]

    @property
    def cells(self) -> tuple[CellReport, ...]:
        """Return the cells as they report; none while the head does not answer."""
        return self.report.cells if self.report else ()

    def located(self, instance: str) -> tuple[CellReport, InstanceReport] | None:
        """Return the cell that holds the instance, and the cell's report of it."""
        for cell in self.cells:
            for found in cell.instances:
                if found.name == instance:
                    return cell, found
        return None
