"""Any component of a deployment may die: no accepted request is lost, and it is restarted.

Each test kills something while traffic runs, which records clients' failures.
"""

import subprocess
import time
from contextlib import suppress

import pytest
from cluster import Capability, Cluster
from world.kube import Kube
from world.repeating import repeating
from world.served import Served, emulated
from world.traffic import Traffic
from world.waiting import eventually

pytestmark = pytest.mark.e2e

HEAD_OUTAGE_S = 60
"""Longest time without cell schedulers after the loss of the head, during which ingresses spread
requests over the known instances."""

UNSCHEDULED_TTFT_S = 4.0
"""TTFT without a scheduler, for whose answer an ingress waits one second."""


def _leader(operator: Kube) -> str:
    """Return the leading operator pod."""
    lease = operator.get("lease", "macroserve-operator")
    assert lease is not None
    return lease["spec"]["holderIdentity"]


def _restarts(pod: dict) -> int:
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", []))


def _last_end(pod: dict) -> dict | None:
    """Return the last termination of the pod's container."""
    for status in pod["status"]["containerStatuses"]:
        if ended := status["lastState"].get("terminated"):
            return ended
    return None


@pytest.mark.needs(Capability.KILL_PODS)
def test_split_whose_operator_is_killed_is_completed(
    served: Served, operator: Kube, cluster: Cluster
) -> None:
    with Traffic(served.endpoint) as traffic:
        traffic.after(5)
        served.scale(7)
        # Pods are starting, so the split is not finished.
        eventually(lambda: len(served.pods()) > 3, 30, every_s=0.05)
        killed = _leader(operator)
        # A deleted operator would get SIGTERM and release the Lease.
        cluster.kill_pod(operator.namespace, killed)
        died = time.monotonic()
        operator("delete", "pod", killed, "--grace-period=0", "--force")
        eventually(lambda: _leader(operator) not in ("", killed), 30)
        takeover_s = time.monotonic() - died
        served.wait_for_instances(7)
        traffic.after(10)
    assert not traffic.failures
    assert sorted(served.cells.values()) == [3, 4]
    print(f"another replica led after {takeover_s:.1f} s")
    assert takeover_s < 15


def test_deleted_head_is_replaced_and_no_request_fails(served: Served) -> None:
    engines = {pod["metadata"]["uid"]: _restarts(pod) for pod in served.pods()}
    with Traffic(served.endpoint) as traffic:
        traffic.after(10)
        (head,) = served.pods("head")
        lost = time.monotonic()
        served.kube("delete", "pod", head["metadata"]["name"], "--grace-period=0", "--force")
        served.wait_for_condition("Ready", "False", timeout_s=30)
        served.wait_for_condition("Ready", "True", timeout_s=HEAD_OUTAGE_S)
        outage_s = time.monotonic() - lost
        traffic.after(10)
    slowest_s = max(ttft_s for sent, ttft_s in traffic.ttft_s if sent >= lost)
    print(f"no scheduler for {outage_s:.1f} s; the slowest first token took {slowest_s:.1f} s")
    assert not traffic.failures
    assert slowest_s < UNSCHEDULED_TTFT_S, "requests waited for the head"
    assert {pod["metadata"]["uid"]: _restarts(pod) for pod in served.pods()} == engines


EAT_MEMORY = """
open("/proc/1/oom_score_adj", "w").write("1000")  # the instance shall be killed, not this process
eaten = [b"x" * (64 << 20) for _ in range(64)]
"""
GUARANTEED = {"cpu": "400m", "memory": "1Gi"}
"""Equal requests and limits, with which the kernel spares the process that uses the memory."""


def test_instance_out_of_memory_is_restarted_and_no_request_fails(kube: Kube) -> None:
    resources = {"requests": GUARANTEED, "limits": GUARANTEED}
    limited = {"name": "engine", "resources": resources}
    served = Served(kube, emulated("llama", template={"spec": {"containers": [limited]}}))
    served.apply()
    served.wait_for_instances(3)
    victim = served.pods()[0]["metadata"]["name"]
    with Traffic(served.endpoint) as traffic:
        traffic.after(10)
        with suppress(subprocess.CalledProcessError):
            kube("exec", victim, "--", "python", "-c", EAT_MEMORY)
        # The kubelet counts the restart a moment before it reports the termination.
        ended = eventually(
            lambda: next(
                (_last_end(p) for p in served.pods() if p["metadata"]["name"] == victim), None
            ),
            30,
            describe=served.describe,
        )
        served.wait_for_instances(3)
        traffic.after(10)
    assert not traffic.failures
    assert ended
    assert ended["reason"] == "OOMKilled"
    assert "OOMKilled" in served.describe()


@pytest.mark.needs(Capability.STOP_KUBELETS)
def test_lost_node_has_its_pods_replaced(served: Served, cluster: Cluster) -> None:
    nodes = {pod["spec"]["nodeName"] for pod in served.pods("ingress")}
    assert len(nodes) == 2, "both ingresses are on one node"
    lost = max(nodes)
    with Traffic(served.endpoint) as traffic:
        traffic.after(10)
        cluster.kill_kubelet(lost)
        try:
            eventually(
                lambda: (
                    len(pods := served.pods()) == 3
                    and all(pod["spec"].get("nodeName", lost) != lost for pod in pods)
                ),
                120,
                describe=served.describe,
                every_s=1,
            )
            served.wait_for_instances(3)
            traffic.after(10)
        finally:
            cluster.start_kubelet(lost)
        traffic.after(10)
    assert not traffic.failures


@pytest.mark.slow
@pytest.mark.needs(Capability.STOP_API_SERVER)
def test_api_server_down_for_a_minute_interrupts_no_request(
    served: Served, cluster: Cluster
) -> None:
    with Traffic(served.endpoint) as traffic:
        traffic.after(10)
        cluster.stop_apiserver()
        try:
            time.sleep(60)
        finally:
            cluster.start_apiserver()
        traffic.after(10)
        served.scale(4)
        served.wait_for_instances(4)
    assert not traffic.failures


def test_scaling_among_many_writers_fails_no_request(served: Served) -> None:
    def annotate(number: int) -> None:
        note = f"storm={number}"
        served.kube("annotate", "--overwrite", "macroinstance", served.name, note)
        # A pod may have ended since the listing.
        with suppress(subprocess.CalledProcessError):
            served.kube("annotate", "--overwrite", "pods", "--all", note)
        served.kube("annotate", "--overwrite", "deployments,services", "--all", note)

    with Traffic(served.endpoint) as traffic, repeating(annotate):
        traffic.after(5)
        served.scale(7)
        served.wait_for_instances(7)
        served.scale(3)
        served.wait_for_instances(3)
    assert not traffic.failures


def test_macroinstances_side_by_side_serve_independently(served: Served) -> None:
    other = Served(served.kube, emulated("other", instances=1, ingress={"replicas": 1}))
    with Traffic(served.endpoint) as traffic:
        traffic.after(5)
        other.apply()
        other.wait_for_instances(1)
        with Traffic(other.endpoint) as beside:
            beside.after(5)
            served.scale(4)
            served.wait_for_instances(4)
            beside.after(5)
        assert not beside.failures
        pods = [pod["metadata"]["uid"] for pod in served.all_pods()]
        served.kube("delete", "macroinstance", other.name, "--timeout=120s")
        traffic.after(5)
    assert not traffic.failures
    served.wait_for_instances(4)
    assert [pod["metadata"]["uid"] for pod in served.all_pods()] == pods, (
        "the other's end cost pods"
    )


def test_deletion_ends_accepted_requests_and_leaves_nothing(fresh: Served) -> None:
    assert fresh.resource["metadata"]["finalizers"] == ["macroserve.io/drain"]
    with Traffic(fresh.endpoint, rate=8, num_tokens=300) as traffic:
        traffic.after(5)
        traffic.end()
        running = traffic.sent - traffic.complete
        assert running > 5, "nothing runs that the deletion could cut off"
        fresh.kube("delete", "macroinstance", fresh.name, "--timeout=120s")
    assert not traffic.failures
    assert traffic.complete == traffic.sent

    def nothing_left() -> bool:
        labels = f"macroserve.io/macroinstance={fresh.name}"
        kinds = "pods,services,deployments,configmaps,secrets,poddisruptionbudgets"
        return not fresh.kube.items(kinds, labels)

    eventually(nothing_left, 60, describe=fresh.describe)


def test_pods_that_have_just_started_end_soon(kube: Kube) -> None:
    """The first process of a container ignores SIGTERM until it has a handler."""
    served = Served(kube, emulated("llama"))
    served.apply()

    def has_started() -> bool:
        return any(
            status["state"].get("running")
            for pod in served.pods("ingress")
            for status in pod["status"].get("containerStatuses", ())
        )

    eventually(has_started, 60, every_s=0.1)
    kube("delete", "macroinstance", served.name, "--timeout=60s")
    eventually(lambda: not kube.items("pods"), 60, describe=lambda: kube("get", "pods"))


@pytest.mark.slow
def test_namespace_with_macroinstances_is_deleted(fresh: Served, cluster: Cluster) -> None:
    """Kubernetes checks whether a namespace is empty after half its pods' grace of five minutes."""
    cluster.kubectl("delete", "namespace", fresh.kube.namespace, "--timeout=200s")
    cluster.kubectl("create", "namespace", fresh.kube.namespace)
