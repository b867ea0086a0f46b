"""What a MacroInstance's rounds do about a node on which no instance can start."""

import asyncio
from datetime import timedelta
from typing import Any

from support.played_api import Raw
from support.played_deployment import PlayedDeployment, resource
from support.played_rounds import condition, events, settle, settled

from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import EVENT, POD
from macroserve.operator.reconcile.reconciler import Reconciler

ECC = "CUDA error: uncorrectable ECC error encountered"
TERM = "requiredDuringSchedulingIgnoredDuringExecution"


def ended(message: str) -> dict[str, Any]:
    return {"exitCode": 1, "message": message, "startedAt": "2026-01-01T00:00:02Z"}


def fail_starts(played: PlayedDeployment, pod: Raw, node: str, times: int) -> None:
    """As a kubelet tells it while it waits for the next start."""
    played.crash(pod)
    engine = {
        "name": "engine",
        "ready": False,
        "restartCount": times - 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": ended(ECC)},
    }
    found = played.api.all(POD)
    (pod,) = [p for p in found if p["metadata"]["name"] == pod["metadata"]["name"]]
    spec, status = {**pod["spec"], "nodeName": node}, {**pod["status"], "podIP": None}
    status |= {"phase": "Pending", "containerStatuses": [engine]}
    played.api.put(POD, {**pod, "spec": spec, "status": status})


def rounds(played: PlayedDeployment, reconciler: Reconciler, number: int) -> None:
    async def go() -> None:
        for _ in range(number):
            await played.round(reconciler)

    asyncio.run(go())


def excluded(pod: Raw) -> list[str]:
    terms = pod["spec"]["affinity"].get("nodeAffinity", {}).get(TERM, {"nodeSelectorTerms": []})
    (fields,) = [term["matchFields"] for term in terms["nodeSelectorTerms"]] or [[]]
    return [value for field in fields for value in field["values"]]


def with_a_broken_node() -> tuple[PlayedDeployment, Reconciler]:
    """instance-1 has failed three starts on gpu-7, and nothing was done about it yet."""
    played, reconciler = settled(resource(3))
    fail_starts(played, played.pods()["instance-1"], "gpu-7", 3)
    return played, reconciler


def test_instance_goes_to_another_node_and_others_stay() -> None:
    played, reconciler = with_a_broken_node()
    before = {name: pod["metadata"]["uid"] for name, pod in played.pods().items()}
    asyncio.run(settle(played, reconciler))
    after = played.pods()
    assert before["instance-1"] not in {pod["metadata"]["uid"] for pod in after.values()}
    assert {name: after[name]["metadata"]["uid"] for name in ("instance-0", "instance-2")} == {
        name: before[name] for name in ("instance-0", "instance-2")
    }
    (new,) = after.keys() - {"instance-0", "instance-2"}
    assert excluded(after[new]) == ["gpu-7"]
    assert all(not excluded(after[name]) for name in ("instance-0", "instance-2"))
    assert condition(played, "Ready")["status"] == "True"


def test_node_is_told_of_once_also_by_the_next_operator() -> None:
    played, reconciler = with_a_broken_node()
    rounds(played, reconciler, 3)
    played.now += timedelta(minutes=1)
    rounds(played, played.reconciler(), 3)
    (told,) = [event for event in played.api.all(EVENT) if event["reason"] == "NodeAvoided"]
    assert (told["count"], told["type"]) == (1, "Warning")
    assert "gpu-7" in told["message"] and ECC in told["message"] and "instance-1" in told["message"]
    degraded = condition(played, "Degraded")
    assert degraded["status"] == "True"
    assert "The node gpu-7 gets no instances before 2026-01-01T" in degraded["message"]


def test_pod_ends_only_after_the_status_has_the_node() -> None:
    """An operator that dies in between leaves the next one all that it needs."""
    played, reconciler = with_a_broken_node()
    rounds(played, reconciler, 1)
    assert "deletionTimestamp" not in played.pods()["instance-1"]["metadata"]
    found = played.resource()
    assert found and [entry["node"] for entry in found["status"]["avoidedNodes"]] == ["gpu-7"]
    rounds(played, played.reconciler(), 1)
    assert "deletionTimestamp" in played.pods()["instance-1"]["metadata"]


def test_node_has_instances_again_after_an_hour() -> None:
    played, reconciler = with_a_broken_node()
    asyncio.run(settle(played, reconciler))
    played.now += timedelta(hours=1)
    rounds(played, reconciler, 1)
    found = played.resource()
    assert found and found["status"]["avoidedNodes"] == []
    assert condition(played, "Degraded")["status"] == "False"
    played.end(played.pods()["instance-0"])
    asyncio.run(settle(played, reconciler))
    notes = [pod["metadata"]["annotations"][names.EXCLUDED_NODES] for pod in played.pods().values()]
    assert sorted(notes) == ["", "", "gpu-7"]


def test_only_node_is_avoided_until_its_hour_is_over_and_the_condition_says_so() -> None:
    played, reconciler = settled(resource(1))
    fail_starts(played, played.pods()["instance-0"], "gpu-7", 3)
    rounds(played, reconciler, 2)
    for pod in list(played.pods().values()):
        if "deletionTimestamp" in pod["metadata"]:
            played.end(pod)
    (waiting,) = played.pods().values()
    cause = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"phase": "Pending", "conditions": [{**scheduled, "message": cause}]}
    played.api.put(POD, {**waiting, "status": status})
    rounds(played, reconciler, 3)
    (same,) = played.pods().values()
    assert same["metadata"]["uid"] == waiting["metadata"]["uid"]
    message = condition(played, "Degraded")["message"]
    assert f"{cause} It may not run on gpu-7, whose devices failed" in message
    played.now += timedelta(hours=1)
    asyncio.run(settle(played, reconciler))
    (pod,) = played.pods().values()
    assert excluded(pod) == []
    assert condition(played, "Ready")["status"] == "True"
    assert "NodeAvoided" in events(played)


def test_new_form_of_the_spec_may_run_on_the_node_at_once() -> None:
    played, reconciler = with_a_broken_node()
    asyncio.run(settle(played, reconciler))
    played.apply(resource(3, template={"spec": {"priorityClassName": "high"}}))
    asyncio.run(settle(played, reconciler))
    assert [excluded(pod) for pod in played.pods().values()] == [[], [], []]
    assert condition(played, "Degraded")["status"] == "False"
