"""Problems have an actionable cause from raw status."""

from typing import Any

import pytest

from macroserve.operator.k8s import names
from macroserve.operator.observe.observation import Problem
from macroserve.operator.observe.problems import (
    MAX_CAUSE_CHARS,
    NO_IMAGE_VOLUMES,
    deployment_problem,
    missing_secret,
    pod_problem,
    refusal,
)

LIMITS = {"limits": {"memory": "2Gi"}}
IMAGE = "registry.local/engine:1"


def pod(
    state: dict[str, Any] | None = None,
    last: dict[str, Any] | None = None,
    ready: bool = False,
    restarts: int = 0,
    status: dict[str, Any] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """Return a pod with one container, which runs by default."""
    container = {
        "name": "engine",
        "image": IMAGE,
        "ready": ready,
        "restartCount": restarts,
        "state": state or {"running": {"startedAt": "2026-03-01T12:00:00Z"}},
        "lastState": last or {},
    }
    usual = {
        "phase": "Running",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": str(ready)},
        ],
        "containerStatuses": [container],
    }
    return {
        "metadata": {"name": "llama-instance-0", **metadata},
        "spec": {"nodeName": "node2", "containers": [{"name": "engine", "resources": LIMITS}]},
        "status": {**usual, **(status or {})},
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def terminated(exit_code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": exit_code, "reason": reason, "message": message}}


def unscheduled(message: str, reason: str = "Unschedulable") -> dict[str, Any]:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"phase": "Pending", "conditions": [scheduled], "containerStatuses": []}


def failed(reason: str = "", message: str = "", **more: Any) -> dict[str, Any]:
    return {"phase": "Failed", "reason": reason, "message": message, **more}


NO_GPU = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
PREEMPTION = " preemption: 0/2 nodes are available: 2 No preemption victims found."
TRACE = "INFO starting\nTraceback (most recent call last):\nValueError: no checkpoint\n\n"
LOST = {
    "conditions": [{"type": "Ready", "status": "False"}],
    "containerStatuses": [{"name": "engine", "ready": True, "state": {"running": {}}}],
}

FINE = [
    pod(ready=True),
    pod(),
    pod(waiting("ContainerCreating")),
    pod(waiting("PodInitializing")),
    pod(status={"containerStatuses": [], "conditions": []}),
    {"metadata": {"name": "new"}, "spec": {"containers": []}},
    pod(ready=True, last=terminated(1), restarts=7),
    pod(ready=True, last=terminated(137, "OOMKilled"), restarts=1),
    pod(last=terminated(0, "Completed"), restarts=1),
    pod(terminated(0, "Completed")),
    pod(terminated(143), deletionTimestamp="2026-03-01T12:00:00Z"),
    pod(status={"phase": "Succeeded"}),
]


@pytest.mark.parametrize("raw", FINE)
def test_pod_that_runs_or_starts_has_no_problem(raw: dict[str, Any]) -> None:
    assert pod_problem(raw) is None


def test_pod_that_waits_says_which_nodes_are_left_out() -> None:
    raw = pod(status=unscheduled(NO_GPU))
    nodes = ",".join(f"gpu-{number}" for number in range(7))
    raw["metadata"]["annotations"] = {names.EXCLUDED_NODES: nodes}
    found = pod_problem(raw)
    assert found
    assert found.message == (
        f"No node can run it: {NO_GPU} It may not run on gpu-0, gpu-1, gpu-2, gpu-3, gpu-4 and 2 "
        "more, whose devices failed (status.avoidedNodes)."
    )


PULL = f"The image {IMAGE} cannot be pulled: look at its name, its registry and the pull secrets."
CASES = [
    # Where it may run
    (pod(status=unscheduled(NO_GPU)), "Unschedulable", f"No node can run it: {NO_GPU}"),
    (
        pod(status=unscheduled(NO_GPU + PREEMPTION)),
        "Unschedulable",
        f"No node can run it: {NO_GPU}",
    ),
    (
        pod(status=unscheduled('persistentvolumeclaim "models" not found')),
        *("Unschedulable", 'No node can run it: persistentvolumeclaim "models" not found.'),
    ),
    (
        pod(status=unscheduled("", "SchedulingGated")),
        *("SchedulingGated", "No node can run it: no reason is given."),
    ),
    # Its image
    (pod(waiting("ErrImagePull", "rpc error: code = Unknown")), "ImagePullBackOff", PULL),
    (pod(waiting("ImagePullBackOff", "Back-off pulling image")), "ImagePullBackOff", PULL),
    (
        pod(waiting("ErrImageNeverPull")),
        *("ErrImageNeverPull", f"The image {IMAGE} is not on its node, and may not be pulled."),
    ),
    (
        pod(waiting("InvalidImageName")),
        *("InvalidImageName", f"'{IMAGE}' is not the name of an image."),
    ),
    # Its container
    (
        pod(waiting("CreateContainerConfigError", 'secret "keys" not found')),
        *("CreateContainerConfigError", 'Its container cannot start: secret "keys" not found.'),
    ),
    (
        pod(waiting("RunContainerError", 'exec: "macroserve":\n  not found')),
        *("RunContainerError", 'Its container cannot start: exec: "macroserve": not found.'),
    ),
    (pod(waiting("Odd")), "Odd", "Its container cannot start: no reason is given."),
    # How it ended
    (
        pod(terminated(137, "OOMKilled")),
        *("OOMKilled", "It was killed because it used more memory than its limit of 2Gi."),
    ),
    (
        pod(waiting("CrashLoopBackOff"), terminated(137, "OOMKilled"), restarts=3),
        *("OOMKilled", "It was killed because it used more memory than its limit of 2Gi."),
    ),
    (
        {**pod(terminated(137, "OOMKilled")), "spec": {"containers": [{"name": "engine"}]}},
        *("OOMKilled", "It was killed because it used more memory than its node has."),
    ),
    (
        pod(terminated(2, message=TRACE)),
        *("Crashed", "It crashes with exit code 2: ValueError: no checkpoint."),
    ),
    (pod(terminated(139)), "Crashed", "It crashes by SIGSEGV."),
    (pod(terminated(255)), "Crashed", "It crashes with exit code 255."),
    (
        pod(last=terminated(1, message="Stop!"), restarts=1),
        *("Crashed", "It crashes with exit code 1: Stop!"),
    ),
    (
        pod(terminated(1, message="x" * 999)),
        *("Crashed", f"It crashes with exit code 1: {'x' * MAX_CAUSE_CHARS}..."),
    ),
    # Ended for good
    (
        pod(status=failed("Evicted", "The node was low on resource: memory.")),
        *("Evicted", "Its node evicted it: The node was low on resource: memory."),
    ),
    (
        pod(status=failed("UnexpectedAdmissionError", "Allocate failed due to no GPU")),
        *("UnexpectedAdmissionError", "Its node stopped it: Allocate failed due to no GPU."),
    ),
    (pod(terminated(3), status={"phase": "Failed"}), "Failed", "It has ended with exit code 3."),
    (pod(status={"phase": "Failed", "containerStatuses": []}), "Failed", "It has ended."),
    # Its node
    (pod(status=LOST), "NodeLost", "Its node node2 does not answer."),
    (
        pod(status=LOST, deletionTimestamp="2026-03-01T12:00:00Z"),
        *("NodeLost", "Its node node2 does not answer."),
    ),
    (
        pod(status={"reason": "NodeLost", "phase": "Unknown"}),
        *("NodeLost", "Its node node2 does not answer."),
    ),
]


@pytest.mark.parametrize(("raw", "reason", "message"), CASES)
def test_pod_that_cannot_run_names_its_cause(
    raw: dict[str, Any], reason: str, message: str
) -> None:
    assert pod_problem(raw) == Problem(reason, message)


def test_crash_loop_in_every_phase_is_one_problem() -> None:
    ended = terminated(1, message="ValueError: no checkpoint")
    back_off = "back-off {} restarting failed container=engine"
    turns = [
        pod(ended, ended, restarts=2),
        pod(waiting("CrashLoopBackOff", back_off.format("20s")), ended, restarts=2),
        pod(None, ended, restarts=3),
        pod(ended, ended, restarts=3),
        pod(waiting("CrashLoopBackOff", back_off.format("40s")), ended, restarts=3),
    ]
    (problem,) = {pod_problem(turn) for turn in turns}
    assert problem == Problem(
        "CrashLoopBackOff",
        "It crashes repeatedly with exit code 1: ValueError: no checkpoint.",
    )


def test_problem_of_an_init_container_comes_first() -> None:
    raw = pod(waiting("PodInitializing"))
    init = {"name": "fetch", "image": "f:1", "state": waiting("ErrImagePull"), "restartCount": 0}
    raw["status"]["initContainerStatuses"] = [init]
    problem = pod_problem(raw)
    assert problem and "f:1" in problem.message


@pytest.mark.parametrize("reason", ["ContainersNotReady", "ReadinessGatesNotReady"])
def test_pod_with_a_reason_of_its_kubelet_is_not_lost(reason: str) -> None:
    unready = {"type": "Ready", "status": "False", "reason": reason}
    assert pod_problem(pod(status={**LOST, "conditions": [unready]})) is None


QUOTA = 'pods "llama-head-x" is forbidden: exceeded quota: pods'
FAILURE = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": QUOTA}
REFUSED = {"status": {"conditions": [FAILURE]}}


@pytest.mark.parametrize(
    ("deployment", "pods", "expected"),
    [
        ({}, [], None),
        ({"status": {"conditions": [{**FAILURE, "status": "False"}]}}, [], None),
        (REFUSED, [], Problem("FailedCreate", f"Its pods are refused: {QUOTA}.")),
        ({}, [pod(ready=True), pod(waiting("ErrImagePull"))], Problem("ImagePullBackOff", PULL)),
        (REFUSED, [pod(waiting("ErrImagePull"))], Problem("ImagePullBackOff", PULL)),
    ],
)
def test_deployment_reports_the_problems_of_its_pods(
    deployment: dict[str, Any], pods: list[dict[str, Any]], expected: Problem | None
) -> None:
    assert deployment_problem(deployment, pods) == expected


def test_refusal_keeps_the_words_of_the_api_server() -> None:
    status = {"reason": "Forbidden", "message": "exceeded quota: pods=2", "code": 403}
    assert refusal("pod llama-instance-0", status) == Problem(
        "Forbidden", "The API server refuses pod llama-instance-0: exceeded quota: pods=2."
    )
    assert refusal("pod a", {}) == Problem(
        "Refused", "The API server refuses pod a: no reason is given."
    )


def test_absent_secret_is_a_problem_that_names_its_field() -> None:
    assert missing_secret("spec.ingress.apiKeysSecret", "keys") == Problem(
        "SecretNotFound", "spec.ingress.apiKeysSecret is 'keys', but there is no such Secret."
    )


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({"name": "model-cache", "emptyDir": {}}, Problem("NoImageVolumes", NO_IMAGE_VOLUMES)),
        ({"name": "model-cache", "image": {"reference": "models:1"}}, None),
        ({"name": "model-cache", "persistentVolumeClaim": {"claimName": "models"}}, None),
        ({"name": "tmp", "emptyDir": {}}, None),
    ],
)
def test_image_volume_that_the_api_server_dropped_is_a_problem(
    volume: dict[str, Any], expected: Problem | None
) -> None:
    mounted = pod()
    mounted["spec"]["volumes"] = [volume]
    assert pod_problem(mounted) == expected
