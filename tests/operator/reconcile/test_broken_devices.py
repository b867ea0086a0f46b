"""Reconciles avoid a node on which no instance can start."""

import asyncio
from datetime import timedelta

from support.fake_api_server import Raw
from support.fake_deployment import FakeDeployment, resource
from support.fake_reconciles import ECC, condition, events, fail_starts, settle, settled

from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import EVENT, POD
from macroserve.operator.reconcile.reconciler import Reconciler

TERM = "requiredDuringSchedulingIgnoredDuringExecution"


def reconcile(fake: FakeDeployment, reconciler: Reconciler, number: int) -> None:
    async def go() -> None:
        for _ in range(number):
            await fake.reconcile(reconciler)

    asyncio.run(go())


def excluded(pod: Raw) -> list[str]:
    terms = pod["spec"]["affinity"].get("nodeAffinity", {}).get(TERM, {"nodeSelectorTerms": []})
    (fields,) = [term["matchFields"] for term in terms["nodeSelectorTerms"]] or [[]]
    return [value for field in fields for value in field["values"]]


def with_a_broken_node() -> tuple[FakeDeployment, Reconciler]:
    """instance-1 has failed three starts on gpu-7, and nothing was done about it yet."""
    fake, reconciler = settled(resource(3))
    fail_starts(fake, fake.pods()["instance-1"], "gpu-7", 3)
    return fake, reconciler


def test_instance_with_a_broken_device_moves_and_others_stay() -> None:
    fake, reconciler = with_a_broken_node()
    before = {name: pod["metadata"]["uid"] for name, pod in fake.pods().items()}
    asyncio.run(settle(fake, reconciler))
    after = fake.pods()
    assert before["instance-1"] not in {pod["metadata"]["uid"] for pod in after.values()}
    assert {name: after[name]["metadata"]["uid"] for name in ("instance-0", "instance-2")} == {
        name: before[name] for name in ("instance-0", "instance-2")
    }
    (new,) = after.keys() - {"instance-0", "instance-2"}
    assert excluded(after[new]) == ["gpu-7"]
    assert all(not excluded(after[name]) for name in ("instance-0", "instance-2"))
    assert condition(fake, "Ready")["status"] == "True"


def test_avoided_node_has_one_event_also_after_an_operator_restart() -> None:
    fake, reconciler = with_a_broken_node()
    reconcile(fake, reconciler, 3)
    fake.now += timedelta(minutes=1)
    reconcile(fake, fake.reconciler(), 3)
    (told,) = [event for event in fake.api.all(EVENT) if event["reason"] == "NodeAvoided"]
    assert (told["count"], told["type"]) == (1, "Warning")
    assert "gpu-7" in told["message"] and ECC in told["message"] and "instance-1" in told["message"]
    degraded = condition(fake, "Degraded")
    assert degraded["status"] == "True"
    assert "The node gpu-7 gets no instances until 2026-01-01T" in degraded["message"]


def test_pod_ends_only_after_the_status_has_the_node() -> None:
    """An operator that dies in between leaves the next one all that it needs."""
    fake, reconciler = with_a_broken_node()
    reconcile(fake, reconciler, 1)
    assert "deletionTimestamp" not in fake.pods()["instance-1"]["metadata"]
    found = fake.resource()
    assert found and [entry["node"] for entry in found["status"]["avoidedNodes"]] == ["gpu-7"]
    reconcile(fake, fake.reconciler(), 1)
    assert "deletionTimestamp" in fake.pods()["instance-1"]["metadata"]


def test_node_has_instances_again_after_an_hour() -> None:
    fake, reconciler = with_a_broken_node()
    asyncio.run(settle(fake, reconciler))
    fake.now += timedelta(hours=1)
    reconcile(fake, reconciler, 1)
    found = fake.resource()
    assert found and "avoidedNodes" not in found["status"]
    assert condition(fake, "Degraded")["status"] == "False"
    fake.end(fake.pods()["instance-0"])
    asyncio.run(settle(fake, reconciler))
    notes = [pod["metadata"]["annotations"][names.EXCLUDED_NODES] for pod in fake.pods().values()]
    assert sorted(notes) == ["", "", "gpu-7"]


def test_node_without_an_alternative_is_avoided_and_degraded_says_so() -> None:
    fake, reconciler = settled(resource(1))
    fail_starts(fake, fake.pods()["instance-0"], "gpu-7", 3)
    reconcile(fake, reconciler, 2)
    for pod in list(fake.pods().values()):
        if "deletionTimestamp" in pod["metadata"]:
            fake.end(pod)
    (waiting,) = fake.pods().values()
    cause = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"phase": "Pending", "conditions": [{**scheduled, "message": cause}]}
    fake.api.put(POD, {**waiting, "status": status})
    reconcile(fake, reconciler, 3)
    (same,) = fake.pods().values()
    assert same["metadata"]["uid"] == waiting["metadata"]["uid"]
    message = condition(fake, "Degraded")["message"]
    assert f"{cause} It may not run on gpu-7, whose devices failed" in message
    fake.now += timedelta(hours=1)
    asyncio.run(settle(fake, reconciler))
    (pod,) = fake.pods().values()
    assert excluded(pod) == []
    assert condition(fake, "Ready")["status"] == "True"
    assert "NodeAvoided" in events(fake)


def test_changed_spec_may_run_on_the_avoided_node_at_once() -> None:
    fake, reconciler = with_a_broken_node()
    asyncio.run(settle(fake, reconciler))
    fake.apply(resource(3, template={"spec": {"priorityClassName": "high"}}))
    asyncio.run(settle(fake, reconciler))
    assert [excluded(pod) for pod in fake.pods().values()] == [[], [], []]
    assert condition(fake, "Degraded")["status"] == "False"
