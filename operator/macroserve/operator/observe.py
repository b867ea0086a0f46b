"""From objects as the API server has them to the parts of an Observation: pure."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from macroserve.core.views import Pool
from macroserve.operator import names
from macroserve.operator.observation import InstancePod, Server
from macroserve.operator.problems import deployment_problem, pod_problem

Object = Mapping[str, Any]


def instance_pods(pods: Iterable[Object], uid: str) -> tuple[InstancePod, ...]:
    """In the order of their numbers. One of an earlier MacroInstance of that name is going."""
    found = [_instance_pod(pod, uid) for pod in of_component(pods, "instance")]
    return tuple(sorted(found, key=lambda pod: (len(pod.instance), pod.instance)))


def server(deployment: Object | None, pods: Iterable[Object]) -> Server | None:
    """pods: the Deployment's own."""
    if deployment is None:
        return None
    status = deployment.get("status", {})
    return Server(
        ready=status.get("readyReplicas", 0),
        wanted=deployment["spec"].get("replicas", 1),
        revision=annotations(deployment).get(names.REVISION, ""),
        problem=deployment_problem(deployment, list(pods)),
    )


def head_address(pods: Iterable[Object]) -> str | None:
    """Of the pod that answers as the head; an address, for DNS may be a minute behind."""
    ready = [pod for pod in of_component(pods, "head") if is_ready(pod) and not is_deleting(pod)]
    newest = max(ready, key=lambda pod: pod["metadata"]["creationTimestamp"], default=None)
    return newest["status"].get("podIP") if newest else None


def of_component(objects: Iterable[Object], component: str) -> list[Object]:
    return [obj for obj in objects if labels(obj).get(names.COMPONENT) == component]


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)


def is_deleting(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_owned(obj: Object, uid: str) -> bool:
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == uid for owner in owners)


def labels(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def annotations(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("annotations") or {}


def _instance_pod(pod: Object, uid: str) -> InstancePod:
    metadata, status = pod["metadata"], pod.get("status", {})
    marks, notes = labels(pod), annotations(pod)
    draining_since = notes.get(names.DRAINING_SINCE)
    return InstancePod(
        instance=marks.get(names.INSTANCE, metadata["name"]),
        name=metadata["name"],
        cell=marks.get(names.CELL, ""),
        pool=Pool.HP if marks.get(names.POOL) == Pool.HP else Pool.LP,
        revision=notes.get(names.REVISION, ""),
        created=datetime.fromisoformat(metadata["creationTimestamp"]),
        address=status.get("podIP"),
        ready=is_ready(pod),
        failed=status.get("phase") in ("Failed", "Succeeded"),
        deleting=is_deleting(pod) or not is_owned(pod, uid),
        draining_since=datetime.fromisoformat(draining_since) if draining_since else None,
        drain_budget_s=float(notes.get(names.DRAIN_BUDGET, 0)),
        restarts=sum(found["restartCount"] for found in status.get("containerStatuses", ())),
        problem=pod_problem(pod),
    )
