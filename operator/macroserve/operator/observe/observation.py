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
    """Why something does not run. reason: CamelCase, as conditions and events have it (such as
    ``Unschedulable``, ``ImagePullBackOff``, ``OOMKilled``). message: a sentence for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class InstancePod:
    """An instance's pod. cell, pool: of its labels. address: its IP, once it has one.

    failed: ended, and the kubelet will not start it again. terminating: told to end. deleting:
    that, or not this MacroInstance's. problem: what keeps it from serving, or what ended it last.
    drain_budget_s: what its drain was given when it began. node: empty until it has one.
    excluded_nodes: where its affinity keeps it from running. failed_start: None while it is Ready,
    and after it has served. foreign: of a version that this
    one's parts cannot talk to, or with TLS where they have none. tls: whether it serves with TLS.
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
    foreign: bool = False
    tls: bool = False


@dataclass(frozen=True, slots=True)
class FailedStart:
    """The last start of an instance's pod, which ended before the pod was Ready.

    num_ended: how often its container has ended so far. served_until: when the pod was Ready last;
    None if it never was, so that every start of it failed. device_error: what the device's driver
    said, a sentence; empty where the device is not the cause.
    """

    num_ended: int
    served_until: datetime | None
    device_error: str


@dataclass(frozen=True, slots=True)
class Server:
    """A Deployment of a MacroInstance: the head's or the ingresses'.

    ready: its pods that serve, of whatever template. rolled_out: all are of the present template.
    """

    ready: int
    desired_replicas: int
    rolled_out: bool = True
    revision: str = ""
    problem: Problem | None = None

    @property
    def complete(self) -> bool:
        return self.rolled_out and self.ready >= self.desired_replicas


@dataclass(frozen=True, slots=True)
class Observation:
    """now: wall clock, with a time zone. revision: what pods made now would carry.

    head, ingress: None where there is no Deployment yet.
    report: None when the head does not answer. running_cells: schedulers that run, None likewise.
    status: as the resource had it before this reconcile.
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
    head: Server | None
    ingress: Server | None
    report: Report | None
    running_cells: frozenset[str] | None
    status: Mapping[str, Any]

    def located(self, instance: str) -> tuple[CellReport, InstanceReport] | None:
        """Return the cell that holds the instance, and the cell's report of it."""
        for cell in self.report.cells if self.report else ():
            for found in cell.instances:
                if found.name == instance:
                    return cell, found
        return None
