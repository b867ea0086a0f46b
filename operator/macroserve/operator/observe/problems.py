"""Causes for which a pod or a Deployment does not run, from its raw status, for people to act on.

A message stays the same while its cause lasts, without varying parts such as back-off times, so
that a crash loop is one problem.
"""

import signal
from collections.abc import Sequence

from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import Object, excluded_nodes
from macroserve.operator.observe.observation import Problem

NODE_LOST = "NodeLost"

MAX_CAUSE_CHARS = 400
"""Limit on texts from others: a scheduler, a kubelet, an ended process."""

MAX_NODES = 5
"""Limit on the nodes named in one message."""

NO_IMAGE_VOLUMES = (
    "The cluster does not support image volumes, which spec.model.cache.image requires: they need "
    "Kubernetes 1.33 or later with the feature ImageVolume."
)

_PULLS = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")
STARTS = ("ContainerCreating", "PodInitializing")
"""Reasons for which a container waits while it starts normally."""


def pod_problem(pod: Object) -> Problem | None:
    """Return the problem of a pod, or None if the pod runs, starts or terminates on request."""
    status = pod.get("status", {})
    if is_node_lost(pod):
        node = pod.get("spec", {}).get("nodeName", "")
        return Problem(NODE_LOST, f"Its node {node} does not answer.")
    if status.get("phase") == "Failed":
        return _failed(status)
    if pod["metadata"].get("deletionTimestamp"):
        return None
    if unscheduled := _unscheduled(pod):
        return unscheduled
    if _lacks_image_volume(pod):
        return Problem("NoImageVolumes", NO_IMAGE_VOLUMES)
    statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return next(filter(None, (_container(pod, container) for container in statuses)), None)


def _lacks_image_volume(pod: Object) -> bool:
    """Return whether the pod has an empty folder as its model's cache.

    An API server without image volumes silently drops the image, and a volume without a source is
    an empty folder.
    """
    volumes = pod.get("spec", {}).get("volumes", ())
    return any(each["name"] == names.MODEL_CACHE and "emptyDir" in each for each in volumes)


def deployment_problem(deployment: Object, pods: Sequence[Object]) -> Problem | None:
    """Return the problem of a Deployment's pods (`pods`), or of creating them."""
    for pod in pods:
        if problem := pod_problem(pod):
            return problem
    failure = condition(deployment.get("status", {}), "ReplicaFailure")
    if failure.get("status") == "True":
        return Problem(failure["reason"], f"Its pods are refused: {_cause(failure)}")
    return None


def refusal(what: str, status: Object) -> Problem:
    """Return the problem of an object that the API server refuses.

    what: kind and name of the object, such as ``pod llama-instance-0``.
    status: the API server's ``Status``.
    """
    reason = status.get("reason") or "Refused"
    return Problem(reason, f"The API server refuses {what}: {_cause(status)}")


def missing_secret(field: str, name: str) -> Problem:
    """Return the problem of a pod that mounts an absent Secret; its status does not mention it."""
    return Problem("SecretNotFound", f"{field} is {name!r}, but there is no such Secret.")


def is_node_lost(pod: Object) -> bool:
    """Return whether the pod's node does not answer.

    The node controller then sets Ready to False without a reason, as no kubelet does, and keeps the
    kubelet's last report, in which every container is ready.
    """
    status = pod.get("status", {})
    containers = status.get("containerStatuses", ())
    said_ready = bool(containers) and all(container.get("ready") for container in containers)
    ready = condition(status, "Ready")
    taken_away = ready.get("status") == "False" and not ready.get("reason")
    return status.get("reason") == NODE_LOST or (said_ready and taken_away)


def _failed(status: Object) -> Problem:
    """Return the problem of a pod that failed for good: evicted, stopped or past its deadline."""
    reason = status.get("reason") or "Failed"
    if not status.get("message"):
        ended = [
            container["state"]["terminated"]
            for container in status.get("containerStatuses", ())
            if "terminated" in container.get("state", {})
        ]
        return Problem(reason, f"It has ended{_how(ended[0]) if ended else ''}.")
    by = "Its node evicted it" if reason == "Evicted" else "Its node stopped it"
    return Problem(reason, f"{by}: {_cause(status)}")


def _unscheduled(pod: Object) -> Problem | None:
    scheduled = condition(pod.get("status", {}), "PodScheduled")
    if scheduled.get("status") != "False":
        return None
    # The second sentence, about preempting other pods, varies.
    cause = scheduled.get("message", "").split(" preemption:")[0]
    message = f"No node can run it: {_cause({'message': cause})}"
    if excluded := sorted(excluded_nodes(pod)):
        more = f" and {len(excluded) - MAX_NODES} more" if len(excluded) > MAX_NODES else ""
        listed = ", ".join(excluded[:MAX_NODES])
        message += f" It may not run on {listed}{more}, whose devices failed (status.avoidedNodes)."
    return Problem(scheduled.get("reason") or "Unschedulable", message)


def _container(pod: Object, container: Object) -> Problem | None:
    state = container.get("state", {})
    waiting = state.get("waiting", {})
    reason = waiting.get("reason", "")
    image = container.get("image", "")
    if reason in _PULLS:
        return Problem(
            "ImagePullBackOff",
            f"The image {image} cannot be pulled: look at its name, its registry and the pull "
            "secrets.",
        )
    if reason == "ErrImageNeverPull":
        return Problem(reason, f"The image {image} is not on its node, and may not be pulled.")
    if reason == "InvalidImageName":
        return Problem(reason, f"{image!r} is not the name of an image.")
    if ended := _ended(container):
        return _crash(pod, container, ended)
    if reason and reason not in STARTS and reason != "CrashLoopBackOff":
        return Problem(reason, f"Its container cannot start: {_cause(waiting)}")
    return None


def _ended(container: Object) -> Object | None:
    """Return how the container last ended; None once it is ready again."""
    if container.get("ready"):
        return None
    state, last = container.get("state", {}), container.get("lastState", {})
    ended = state.get("terminated") or last.get("terminated")
    return ended if ended and ended.get("reason") != "Completed" else None


def _crash(pod: Object, container: Object, ended: Object) -> Problem:
    if ended.get("reason") == "OOMKilled":
        limit = _memory_limit(pod, container.get("name", ""))
        than = f"its limit of {limit}" if limit else "its node has"
        return Problem("OOMKilled", f"It was killed because it used more memory than {than}.")
    # The kubelet reports CrashLoopBackOff only between two tries.
    repeated = container.get("restartCount", 0) > 1
    how = f"It crashes{' repeatedly' if repeated else ''}{_how(ended)}"
    reason = "CrashLoopBackOff" if repeated else "Crashed"
    said = _last_line(ended.get("message", ""))
    return Problem(reason, f"{how}: {sentence(said)}" if said else f"{how}.")


def _how(ended: Object) -> str:
    code = ended.get("exitCode", 0)
    if code > 128 and code - 128 in signal.valid_signals():
        return f" by {signal.Signals(code - 128).name}"
    return f" with exit code {code}"


def _memory_limit(pod: Object, container: str) -> str | None:
    for spec in pod.get("spec", {}).get("containers", ()):
        if spec.get("name") == container:
            return spec.get("resources", {}).get("limits", {}).get("memory")
    return None


def condition(status: Object, type_: str) -> Object:
    """Return the condition of that type in a raw status, or an empty one."""
    conditions = status.get("conditions") or ()
    return next((found for found in conditions if found["type"] == type_), {})


def _cause(said: Object) -> str:
    """Return the message of another component on one line, with a full stop."""
    return sentence(" ".join(said.get("message", "").split()) or "no reason is given")


def _last_line(text: str) -> str:
    """Return the last line of a termination message, which may be the end of a log."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def sentence(text: str) -> str:
    """Return the text with a full stop and at most MAX_CAUSE_CHARS characters."""
    short = text if len(text) <= MAX_CAUSE_CHARS else f"{text[:MAX_CAUSE_CHARS]}..."
    return short if short.endswith((".", "!", "?")) else f"{short}."
