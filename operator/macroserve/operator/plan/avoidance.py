"""Avoidance of nodes whose devices made an instance fail to start, for an hour.

Counts and decisions are in the status, so they outlive the operator. Once the status lists a node,
new pods exclude it; running pods stay. Entries apply to one revision of the pods: if an image was
the cause, the corrected one may run everywhere at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from macroserve.operator.k8s.times import rfc3339
from macroserve.operator.observe.observation import FailedStart, InstancePod, Observation, Problem

NUM_STARTS = 3
AVOIDED_FOR = timedelta(hours=1)
MAX_NODES = 50
"""Most nodes in a pod's affinity and in the status; the newest are kept."""
MAX_COUNTED = 100


@dataclass(frozen=True, slots=True)
class AvoidedNode:
    """A node that gets no instances for a while."""

    node: str
    until: datetime
    instance: str
    """Instance whose start failed there last."""
    cause: str
    """Cause of that failure."""
    revision: str
    """Revision of that pod."""

    @staticmethod
    def from_status(entry: Mapping[str, Any]) -> "AvoidedNode":
        until = datetime.fromisoformat(entry["until"])
        return AvoidedNode(
            entry["node"], until, entry["instance"], entry["cause"], entry["revision"]
        )

    def to_status(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "until": rfc3339(self.until),
            "instance": self.instance,
            "cause": self.cause,
            "revision": self.revision,
        }

    @property
    def problem(self) -> Problem:
        return Problem(
            "NodeAvoided",
            f"The node {self.node} gets no instances until {rfc3339(self.until)}: "
            f"{self.instance} failed {NUM_STARTS} starts there. {self.cause}",
        )


@dataclass(frozen=True, slots=True)
class CountedStarts:
    """Failed starts of one instance on one node."""

    instance: str
    node: str
    pod: str
    """UID of the last counted pod."""
    num_ended: int
    """Number of times that this pod's container had ended."""
    device_errors: int
    """Number of starts that failed with a device error, over all pods."""
    time: datetime
    """Time of the last failure counted."""

    @staticmethod
    def from_status(entry: Mapping[str, Any]) -> "CountedStarts":
        return CountedStarts(
            entry["instance"],
            entry["node"],
            entry["pod"],
            entry["ended"],
            entry["deviceErrors"],
            datetime.fromisoformat(entry["time"]),
        )

    def to_status(self) -> dict[str, Any]:
        return {
            "instance": self.instance,
            "node": self.node,
            "pod": self.pod,
            "ended": self.num_ended,
            "deviceErrors": self.device_errors,
            "time": rfc3339(self.time),
        }


@dataclass(frozen=True, slots=True)
class Avoidance:
    """Lists for the status after a reconcile, the newest last."""

    nodes: tuple[AvoidedNode, ...]
    starts: tuple[CountedStarts, ...]


def avoided_nodes(observation: Observation) -> tuple[AvoidedNode, ...]:
    """Return the nodes in the status whose hour is not over; new pods exclude them."""
    entries = map(AvoidedNode.from_status, observation.status.get("avoidedNodes", ()))
    return tuple(
        entry
        for entry in entries
        if entry.until > observation.now and entry.revision == observation.revision
    )


def node_names(nodes: Sequence[AvoidedNode]) -> frozenset[str]:
    return frozenset(avoided.node for avoided in nodes)


def avoidance(observation: Observation) -> Avoidance:
    """Return the avoided nodes and counted starts after examining this reconcile's pods."""
    nodes = {entry.node: entry for entry in avoided_nodes(observation)}
    starts = {(entry.instance, entry.node): entry for entry in _counted(observation)}
    for pod in observation.pods:
        place = pod.instance, pod.node
        if pod.ready:
            starts.pop(place, None)
        start = pod.failed_start
        if not start or not pod.node or pod.deleting or pod.revision != observation.revision:
            continue
        counted = _recounted(starts.get(place), pod, start, observation.now)
        if counted.device_errors >= NUM_STARTS and start.device_error and pod.node not in nodes:
            nodes[pod.node] = AvoidedNode(
                pod.node,
                observation.now + AVOIDED_FOR,
                pod.instance,
                start.device_error,
                pod.revision,
            )
        if pod.node in nodes:
            starts.pop(place, None)
        else:
            starts[place] = counted
    return Avoidance(tuple(nodes.values())[-MAX_NODES:], tuple(starts.values())[-MAX_COUNTED:])


def _counted(observation: Observation) -> Iterator[CountedStarts]:
    for entry in map(CountedStarts.from_status, observation.status.get("failedStarts", ())):
        if observation.now - entry.time < AVOIDED_FOR:
            yield entry


def _recounted(
    before: CountedStarts | None, pod: InstancePod, start: FailedStart, now: datetime
) -> CountedStarts:
    """Count the starts that failed since the last reconcile, all with the last one's cause."""
    if before and start.served_until and start.served_until > before.time:
        before = None
    if before and before.pod == pod.uid:
        if before.num_ended == start.num_ended:
            return before
        num_new = max(1, start.num_ended - before.num_ended)
    else:
        num_new = 1 if start.served_until else start.num_ended
    errors = before.device_errors if before else 0
    if start.device_error:
        errors += num_new
    return CountedStarts(pod.instance, pod.node, pod.uid, start.num_ended, errors, now)


def misplaced(observation: Observation, pod: InstancePod) -> str | None:
    """Return why the pod must be replaced, as a sentence, or None if it may stay.

    A pod's affinity is immutable, so a pod that waits for a node is replaced when the avoided nodes
    change.
    """
    if pod.ready or pod.deleting or pod.revision != observation.revision:
        return None
    avoided = node_names(avoided_nodes(observation))
    if not pod.node and pod.excluded_nodes != avoided:
        return "The set of nodes that it may run on has changed."
    if pod.node in avoided and pod.failed_start and pod.failed_start.device_error:
        return f"It failed to start on the node {pod.node}, which is now avoided."
    return None
