"""Plain data about a MacroInstance and all that belongs to it, as one reconcile finds it.

Plans, reports and logs follow from an Observation alone, so they can be tested without a cluster.
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
    """The reason why a pod or Deployment does not run."""

    reason: str
    """CamelCase word as in conditions and events, such as ``Unschedulable`` or ``OOMKilled``."""
    message: str


@dataclass(frozen=True, slots=True)
class InstancePod:
    """Observed pod of an instance."""

    instance: str
    name: str
    cell: str
    """From the pod's label, as is ``pool``."""
    pool: Pool
    revision: str
    address: str | None = None
    ready: bool = False
    failed: bool = False
    """Whether the pod has ended and the kubelet does not restart it."""
    deleting: bool = False
    """Whether the pod terminates or belongs to an earlier MacroInstance."""
    terminating: bool = False
    """Whether its deletion was requested."""
    draining_since: datetime | None = None
    drain_budget_s: float = 0.0
    """Budget of its drain when that started, seconds."""
    problem: Problem | None = None
    """Why the pod does not serve, or how it last ended."""
    uid: str = ""
    node: str = ""
    """Name of its node; empty before it is scheduled."""
    excluded_nodes: frozenset[str] = frozenset()
    """Nodes that its affinity excludes."""
    failed_start: "FailedStart | None" = None
    """Last failed start; None while the pod is Ready, and after it has served."""
    unreachable: bool = False
    """Whether it serves with TLS and other pods have no certificate, as after disabling TLS."""
    tls: bool = False
    created: datetime | None = None
    """None for a pod that the API server has not stored."""
    setup_s: float | None = None
    """Time from its creation to the first start of its engine's container (scheduling, image,
    volumes, init containers), seconds. None before, and after a restart."""
    started: bool = False
    """Whether its engine runs and has generated a token, even if it is not Ready now."""


@dataclass(frozen=True, slots=True)
class FailedStart:
    """Last start of an instance's pod, which ended before the pod was Ready."""

    num_ended: int
    """Number of times that its container has ended."""
    served_until: datetime | None
    """When the pod was last Ready; None if it never was."""
    device_error: str
    """Sentence from the device's driver; empty if the device is not the cause."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """State of the Deployment of the head or of the ingresses."""

    ready: int
    """Number of its pods, of any template, that serve."""
    desired_replicas: int
    rolled_out: bool = True
    """Whether all pods have the present template."""
    has_outdated_pods: bool = False
    """Whether pods of an earlier template serve, or finish their requests."""
    revision: str = ""
    problem: Problem | None = None

    @property
    def complete(self) -> bool:
        return self.rolled_out and self.ready >= self.desired_replicas


@dataclass(frozen=True, slots=True)
class Observation:
    """State of a MacroInstance and of all that belongs to it, at one moment."""

    now: datetime
    """Wall clock, with a time zone."""
    name: str
    namespace: str
    uid: str
    generation: int
    deleting: bool
    manifest: Manifest
    revision: str
    """Revision of pods that are created now."""
    pods: tuple[InstancePod, ...]
    head: ServerState | None
    """None if the Deployment does not exist yet."""
    ingress: ServerState | None
    """None if the Deployment does not exist yet."""
    report: Report | None
    """None if the head does not answer."""
    running_cells: frozenset[str] | None
    """Running cell schedulers; None if the head does not answer."""
    status: Mapping[str, Any]
    """Status of the resource before this reconcile."""

    @property
    def cells(self) -> tuple[CellReport, ...]:
        """Return the reports of the cells; none while the head does not answer."""
        return self.report.cells if self.report else ()

    def located(self, instance: str) -> tuple[CellReport, InstanceReport] | None:
        """Return the cell that holds the instance, and the cell's report of it."""
        for cell in self.cells:
            for found in cell.instances:
                if found.name == instance:
                    return cell, found
        return None
