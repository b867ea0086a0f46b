"""A reconcile creates objects, reports, and returns when to reconcile again."""

import asyncio
import json
from collections import Counter
from datetime import timedelta

import pytest
from support.fake_deployment import FakeDeployment, resource
from support.fake_reconciles import cells, condition, events, settle, settled

from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import ApiError
from macroserve.operator.k8s.kinds import (
    BUDGET,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    MACROINSTANCE,
    SECRET,
    SERVICE,
)
from macroserve.operator.reconcile.reconciler import Requeue


# -- what is there in the end
def test_macroinstance_gets_its_objects_and_owns_them() -> None:
    fake, _ = settled(resource())
    made = {
        (kind.name, obj["metadata"]["name"])
        for kind in (CONFIG_MAP, SECRET, SERVICE, DEPLOYMENT, BUDGET)
        for obj in fake.api.all(kind)
    }
    assert made == {
        ("ConfigMap", "llama-manifest"),
        ("Secret", "llama-tokens"),
        ("Service", "llama"),
        ("Service", "llama-head"),
        ("Service", "llama-instances"),
        ("Deployment", "llama-head"),
        ("Deployment", "llama-ingress"),
        ("PodDisruptionBudget", "llama-ingress"),
        ("PodDisruptionBudget", "llama-instances"),
    }
    owned = [
        obj for kind in (CONFIG_MAP, SECRET, SERVICE, DEPLOYMENT) for obj in fake.api.all(kind)
    ]
    for obj in (*owned, *fake.pods().values()):
        (owner,) = obj["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == ("uid-llama", True), obj["metadata"]["name"]
    assert cells(fake) == {"cell-0": {"instance-0", "instance-1", "instance-2"}}
    assert condition(fake, "Ready")["status"] == "True"


def test_reconcile_with_nothing_to_do_reads_the_secret_now_and_then() -> None:
    fake, reconciler = settled(resource())
    for seconds, calls in ((60, ["get Secret llama-tokens"]), (9, [])):
        fake.now += timedelta(seconds=seconds)
        fake.api.calls.clear()
        fake.requests.clear()
        assert asyncio.run(fake.reconcile(reconciler)) is Requeue.LATER
        assert fake.api.calls == calls
        assert fake.requests == ["GET /admin/v1/cells"]


def test_scale_up_splits_a_cell_and_scale_down_merges_it() -> None:
    fake, reconciler = settled(resource(3))
    fake.apply(resource(7))
    asyncio.run(settle(fake, reconciler))
    assert sorted(len(members) for members in fake.cells.values()) == [3, 4]
    assert {"Split", "HandleMigrated", "InstanceAdded"} <= events(fake)
    fake.apply(resource(3))
    asyncio.run(settle(fake, reconciler))
    assert [len(members) for members in fake.cells.values()] == [3]
    assert {"Merged", "InstanceDraining", "InstanceRemoved", "ScaledDown"} <= events(fake)


def test_pod_labels_follow_the_schedulers() -> None:
    fake, _ = settled(resource(6))
    for name, pod in fake.pods().items():
        labels = pod["metadata"]["labels"]
        engine = fake.engines[pod["metadata"]["name"]]
        assert name in fake.cells[labels[names.CELL]]
        assert labels[names.POOL] == engine.pool


def test_spec_is_never_written() -> None:
    fake, reconciler = settled(resource(3))
    before = fake.resource()
    fake.apply(resource(5))
    asyncio.run(settle(fake, reconciler))
    after = fake.resource()
    assert before and after
    assert after["spec"] == resource(5)["spec"]
    assert not [call for call in fake.api.calls if call.startswith(("replace M", "apply M"))]


def test_objects_after_a_change_of_the_spec_follow_it() -> None:
    fake, reconciler = settled(resource(3))

    def applied() -> dict[str, object]:
        (config_map,) = fake.api.all(CONFIG_MAP)
        manifest = json.loads(config_map["data"]["macroinstance.json"])
        revisions = {
            obj["metadata"]["name"]: obj["metadata"]["annotations"][names.REVISION]
            for obj in fake.api.all(DEPLOYMENT)
        }
        return {"instances": manifest["spec"]["instances"], **revisions}

    before = applied()
    fake.apply(resource(4))
    asyncio.run(settle(fake, reconciler))
    assert applied() == {**before, "instances": 4}
    fake.apply(resource(4, slo={"ttft": "3s", "tpot": "100ms"}))
    asyncio.run(settle(fake, reconciler))
    after = applied()
    assert all(after[name] != before[name] for name in ("llama-head", "llama-ingress"))
    revisions = {p["metadata"]["annotations"][names.REVISION] for p in fake.pods().values()}
    assert len(revisions) == 1, "every instance was replaced"


def test_disruption_budget_allows_one_instance_to_be_missing() -> None:
    fake, reconciler = settled(resource(3))

    def least() -> int:
        budgets = {obj["metadata"]["name"]: obj["spec"] for obj in fake.api.all(BUDGET)}
        assert "maxUnavailable" not in budgets["llama-instances"]
        return budgets["llama-instances"]["minAvailable"]

    assert least() == 2
    fake.apply(resource(1))
    asyncio.run(settle(fake, reconciler))
    assert least() == 0
    found = fake.resource()
    assert found
    bounds = {"minInstances": 1, "maxInstances": 8}
    found["spec"]["autoscaling"], found["status"]["targetInstances"] = bounds, 6
    found["metadata"]["generation"] += 1
    fake.api.put(MACROINSTANCE, found)
    asyncio.run(settle(fake, fake.reconciler()))
    assert least() == 5, "what autoscaling wishes for, not spec.instances"


# -- how soon to look again, and what is told
def test_reconcile_during_an_action_is_requeued_soon() -> None:
    fake, reconciler = settled(resource(3))

    async def paces() -> list[Requeue]:
        return [await fake.reconcile(reconciler) for _ in range(3)]

    assert asyncio.run(paces()) == [Requeue.LATER] * 3
    fake.apply(resource(4))
    assert asyncio.run(paces()) == [Requeue.SOON, Requeue.SOON, Requeue.LATER], (
        "a pod made, a pod seen"
    )
    fake.kubelets()
    assert asyncio.run(paces()) == [Requeue.SOON, Requeue.SOON, Requeue.LATER], (
        "adopted, a member seen"
    )
    fake.engines["llama-instance-3"].tokens = 10
    for engine in fake.engines.values():
        engine.tokens = 10
    fake.apply(resource(3))
    assert asyncio.run(paces()) == [Requeue.SOON] * 3, "it drains"


def test_load_in_the_status_is_updated_rarely() -> None:
    fake, reconciler = settled(resource())
    fake.api.calls.clear()

    async def watched() -> None:
        for tokens in range(1, 31):
            fake.engines["llama-instance-0"].tokens = tokens % 2
            fake.now += timedelta(seconds=1)
            await fake.reconcile(reconciler)

    asyncio.run(watched())
    assert 2 <= fake.api.calls.count("apply_status MacroInstance llama") <= 4


def test_event_that_cannot_be_written_holds_nothing_up() -> None:
    fake = FakeDeployment()
    fake.apply(resource())

    def refuse(verb: str) -> None:
        if fake.api.calls[-1].startswith("apply Event"):
            raise ApiError(403, "no events here", "Forbidden")

    fake.api.before_call = refuse
    asyncio.run(settle(fake, fake.reconciler()))
    assert condition(fake, "Ready")["status"] == "True"


def test_events_wait_until_the_status_can_be_written() -> None:
    fake, reconciler = settled(resource(3))
    for event in fake.api.all(EVENT):
        fake.api.remove(EVENT, event)
    fake.apply(resource(4))

    def refuse(verb: str) -> None:
        if verb == "apply_status":
            raise ApiError(None, "no answer")

    fake.api.before_call = refuse
    with pytest.raises(ApiError, match="no answer"):
        asyncio.run(fake.reconcile(reconciler))
    assert "instance-3" in fake.pods()
    fake.api.before_call = lambda verb: None
    asyncio.run(fake.reconcile(reconciler))
    assert {"InstanceAdded", "ScaledUp"} <= events(fake)


# -- a wrong spec
def test_invalid_spec_changes_the_status_alone() -> None:
    fake, reconciler = settled(resource(3))
    before = set(fake.pods())
    fake.apply(resource(5, mitosis={"lowerBound": 4, "upperBound": 4}))
    fake.api.calls.clear()
    assert asyncio.run(fake.reconcile(reconciler)) is Requeue.LATER
    assert set(fake.pods()) == before
    assert Counter(call.split()[0] for call in fake.api.calls) == {"apply_status": 1, "apply": 1}
    degraded = condition(fake, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "InvalidSpec")
    assert "InvalidSpec" in events(fake)
    fake.apply(resource(4))
    asyncio.run(settle(fake, reconciler))
    assert condition(fake, "Degraded")["status"] == "False"
    assert len(fake.pods()) == 4
