"""Pure functions that build an Observation from objects of the API server."""

from collections.abc import Iterable
from contextlib import suppress

from macroserve.core.scaling.fleet import MAX_BUDGET_S
from macroserve.core.status import Pool
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import (
    Object,
    annotations,
    excluded_nodes,
    is_deleting,
    is_owned,
    labels,
    of_component,
)
from macroserve.operator.k8s.times import parsed
from macroserve.operator.observe.observation import InstancePod, ServerState
from macroserve.operator.observe.problems import (
    STARTS,
    condition,
    deployment_problem,
    is_node_lost,
    pod_problem,
)
from macroserve.operator.observe.starts import failed_start, is_started, setup_s

ENDED = ("Failed", "Succeeded")
"""Phases of a pod that has ended and is not restarted."""


def instance_pods(
    pods: Iterable[Object], uid: str, calls_tls: bool = False
) -> tuple[InstancePod, ...]:
    """Return the instances' pods, sorted by number.

    Pods of an earlier MacroInstance of the same name count as terminating.

    calls_tls: whether the other pods have a certificate.
    """
    found = [_instance_pod(pod, uid, calls_tls) for pod in of_component(pods, "instance")]
    return tuple(sorted(found, key=lambda pod: (len(pod.instance), pod.instance)))


def server(deployment: Object | None, pods: Iterable[Object]) -> ServerState | None:
    """Return the state of a Deployment; `pods` are its own."""
    if deployment is None:
        return None
    pods = list(pods)
    revision = annotations(deployment).get(names.REVISION, "")
    return ServerState(
        ready=deployment.get("status", {}).get("readyReplicas", 0),
        desired_replicas=deployment["spec"].get("replicas", 1),
        rolled_out=_is_rolled_out(deployment),
        has_outdated_pods=any(_is_outdated(pod, revision) for pod in pods),
        revision=revision,
        problem=deployment_problem(deployment, pods),
    )


def _is_rolled_out(deployment: Object) -> bool:
    """Return whether the rollout is complete, by the rules of ``kubectl rollout status``."""
    status = deployment.get("status", {})
    is_seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    num_present = status.get("updatedReplicas", 0)
    desired = deployment["spec"].get("replicas", 1)
    return is_seen and desired <= num_present and status.get("replicas", 0) <= num_present


def _is_outdated(pod: Object, revision: str) -> bool:
    """Return whether the pod is of another revision and may have requests."""
    if pod.get("status", {}).get("phase") in ENDED or is_node_lost(pod):
        return False
    return annotations(pod).get(names.REVISION, "") != revision


def head_address(
    pods: Iterable[Object],
    replica_sets: Iterable[Object],
    deployment: Object | None,
    uid: str,
) -> str | None:
    """Return the address of the pod that runs the head. DNS may be a minute behind.

    Labels are not enough, because the head gets the admin token: the pod must belong to a
        ReplicaSet of the head's Deployment, whose owner has this uid.
    """
    if deployment is None or not is_owned(deployment, uid):
        return None
    own_sets = {
        found["metadata"]["uid"]
        for found in replica_sets
        if is_owned(found, deployment["metadata"]["uid"])
    }
    ready = [
        pod
        for pod in of_component(pods, "head")
        if is_ready(pod) and not is_deleting(pod) and any(is_owned(pod, own) for own in own_sets)
    ]
    newest = max(ready, key=lambda pod: pod["metadata"]["creationTimestamp"], default=None)
    return newest["status"].get("podIP") if newest else None


def is_ready(pod: Object) -> bool:
    return condition(pod.get("status", {}), "Ready").get("status") == "True"


def is_being_set_up(pod: Object) -> bool:
    """Return whether the pod's node still pulls its image or mounts its volumes."""
    return any(state.get("waiting", {}).get("reason") in STARTS for state in _states(pod))


def has_started(pod: Object) -> bool:
    """Return whether a container of the pod runs, and so has read the mounted files."""
    return any("running" in state for state in _states(pod))


def _states(pod: Object) -> list[Object]:
    containers = pod.get("status", {}).get("containerStatuses", ())
    return [container.get("state", {}) for container in containers]


def _instance_pod(pod: Object, uid: str, calls_tls: bool) -> InstancePod:
    metadata, status = pod["metadata"], pod.get("status", {})
    marks, notes = labels(pod), annotations(pod)
    tls = marks.get(names.TLS) == "true"
    return InstancePod(
        instance=marks.get(names.INSTANCE, metadata["name"]),
        name=metadata["name"],
        cell=marks.get(names.CELL, ""),
        pool=Pool.HP if marks.get(names.POOL) == Pool.HP else Pool.LP,
        revision=notes.get(names.REVISION, ""),
        address=status.get("podIP"),
        ready=is_ready(pod),
        failed=status.get("phase") in ENDED,
        deleting=is_deleting(pod) or not is_owned(pod, uid),
        terminating=is_deleting(pod),
        draining_since=parsed(notes.get(names.DRAINING_SINCE, "")),
        drain_budget_s=_seconds(notes.get(names.DRAIN_BUDGET, "")),
        problem=pod_problem(pod),
        uid=metadata.get("uid", ""),
        node=pod.get("spec", {}).get("nodeName", ""),
        excluded_nodes=excluded_nodes(pod),
        failed_start=failed_start(pod),
        unreachable=tls and not calls_tls,
        tls=tls,
        created=parsed(metadata.get("creationTimestamp") or ""),
        setup_s=setup_s(pod),
        started=is_started(pod),
    )


def _seconds(text: str) -> float:
    """Parse a budget. Other texts give the longest one, so that no request is cut off."""
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) <= MAX_BUDGET_S:
            return seconds
    return MAX_BUDGET_S
