"""Rounds of a MacroInstance: what they make, how soon they look again, what they tell."""

import asyncio
import json
from collections import Counter
from datetime import timedelta

import pytest
from support.played_deployment import PlayedDeployment, resource
from support.played_rounds import cells, condition, events, fewest_staying, settle, settled

from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import ApiError
from macroserve.operator.k8s.kinds import (
    BUDGET,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    MACROINSTANCE,
    POD,
    SECRET,
    SERVICE,
)
from macroserve.operator.reconcile.reconciler import Pace


# -- what is there in the end
def test_a_macroinstance_gets_its_objects_and_owns_them() -> None:
    played, _ = settled(resource())
    made = {
        (kind.__name__, obj["metadata"]["name"])
        for kind in (CONFIG_MAP, SECRET, SERVICE, DEPLOYMENT, BUDGET)
        for obj in played.api.all(kind)
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
        obj for kind in (CONFIG_MAP, SECRET, SERVICE, DEPLOYMENT) for obj in played.api.all(kind)
    ]
    for obj in (*owned, *played.pods().values()):
        (owner,) = obj["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == ("uid-llama", True), obj["metadata"]["name"]
    assert cells(played) == {"cell-0": {"instance-0", "instance-1", "instance-2"}}
    assert condition(played, "Ready")["status"] == "True"


def test_a_round_with_nothing_to_do_asks_the_api_server_for_the_secret_now_and_then() -> None:
    played, reconciler = settled(resource())
    for seconds, calls in ((60, ["get Secret llama-tokens"]), (9, [])):
        played.now += timedelta(seconds=seconds)
        played.api.calls.clear()
        played.requests.clear()
        assert asyncio.run(played.round(reconciler)) is Pace.LATER
        assert played.api.calls == calls
        assert played.requests == ["GET /admin/v1/cells"]


def test_instances_of_a_version_that_no_cell_can_talk_to_are_replaced_one_by_one() -> None:
    played, reconciler = settled(resource())
    for pod in played.pods().values():
        notes = {names.REVISION: "of an earlier version"}
        pod["metadata"] |= {"annotations": notes}
        played.api.put(POD, pod)
    played.cells["cell-0"].clear()
    for engine in played.engines.values():
        engine.cell = None
    assert fewest_staying(played, reconciler) == 2
    assert len(played.cells["cell-0"]) == 3
    assert all(
        pod["metadata"]["annotations"][names.PROTOCOL] == names.PROTOCOL_VERSION
        for pod in played.pods().values()
    )
    assert condition(played, "Ready")["status"] == "True"


def test_growth_splits_a_cell_and_shrinking_merges_it_again() -> None:
    played, reconciler = settled(resource(3))
    played.apply(resource(7))
    asyncio.run(settle(played, reconciler))
    assert sorted(len(members) for members in played.cells.values()) == [3, 4]
    assert {"Split", "HandleMigrated", "InstanceAdded"} <= events(played)
    played.apply(resource(3))
    asyncio.run(settle(played, reconciler))
    assert [len(members) for members in played.cells.values()] == [3]
    assert {"Merged", "InstanceDraining", "InstanceRemoved", "ScaledDown"} <= events(played)


def test_labels_follow_the_schedulers() -> None:
    played, _ = settled(resource(6))
    for name, pod in played.pods().items():
        labels = pod["metadata"]["labels"]
        engine = played.engines[pod["metadata"]["name"]]
        assert name in played.cells[labels[names.CELL]]
        assert labels[names.POOL] == engine.pool


def test_spec_is_never_written() -> None:
    played, reconciler = settled(resource(3))
    before = played.resource()
    played.apply(resource(5))
    asyncio.run(settle(played, reconciler))
    after = played.resource()
    assert before and after
    assert after["spec"] == resource(5)["spec"]
    assert not [call for call in played.api.calls if call.startswith(("replace M", "apply M"))]


def test_what_follows_from_the_spec_follows_its_changes() -> None:
    played, reconciler = settled(resource(3))

    def applied() -> dict[str, object]:
        (config_map,) = played.api.all(CONFIG_MAP)
        manifest = json.loads(config_map["data"]["macroinstance.json"])
        revisions = {
            obj["metadata"]["name"]: obj["metadata"]["annotations"][names.REVISION]
            for obj in played.api.all(DEPLOYMENT)
        }
        return {"instances": manifest["spec"]["instances"], **revisions}

    before = applied()
    played.apply(resource(4))
    asyncio.run(settle(played, reconciler))
    assert applied() == {**before, "instances": 4}
    played.apply(resource(4, slo={"ttft": "3s", "tpot": "100ms"}))
    asyncio.run(settle(played, reconciler))
    after = applied()
    assert all(after[name] != before[name] for name in ("llama-head", "llama-ingress"))
    revisions = {p["metadata"]["annotations"][names.REVISION] for p in played.pods().values()}
    assert len(revisions) == 1, "every instance was replaced"


def test_of_the_instances_that_should_be_there_one_may_be_missing() -> None:
    played, reconciler = settled(resource(3))

    def least() -> int:
        budgets = {obj["metadata"]["name"]: obj["spec"] for obj in played.api.all(BUDGET)}
        assert "maxUnavailable" not in budgets["llama-instances"]
        return budgets["llama-instances"]["minAvailable"]

    assert least() == 2
    played.apply(resource(1))
    asyncio.run(settle(played, reconciler))
    assert least() == 0
    found = played.resource()
    assert found
    bounds = {"minInstances": 1, "maxInstances": 8}
    found["spec"]["autoscaling"], found["status"]["targetInstances"] = bounds, 6
    found["metadata"]["generation"] += 1
    played.api.put(MACROINSTANCE, found)
    asyncio.run(settle(played, played.reconciler()))
    assert least() == 5, "what autoscaling wishes for, not spec.instances"


# -- how soon to look again, and what is told
def test_it_looks_again_soon_while_something_is_under_way() -> None:
    played, reconciler = settled(resource(3))

    async def paces() -> list[Pace]:
        return [await played.round(reconciler) for _ in range(3)]

    assert asyncio.run(paces()) == [Pace.LATER] * 3
    played.apply(resource(4))
    assert asyncio.run(paces()) == [Pace.SOON, Pace.SOON, Pace.LATER], "a pod made, a pod seen"
    played.kubelets()
    assert asyncio.run(paces()) == [Pace.SOON, Pace.SOON, Pace.LATER], "adopted, a member seen"
    played.engines["llama-instance-3"].tokens = 10
    for engine in played.engines.values():
        engine.tokens = 10
    played.apply(resource(3))
    assert asyncio.run(paces()) == [Pace.SOON] * 3, "it drains"


def test_figures_of_the_load_are_told_now_and_then() -> None:
    played, reconciler = settled(resource())
    played.api.calls.clear()

    async def watched() -> None:
        for tokens in range(1, 31):
            played.engines["llama-instance-0"].tokens = tokens % 2
            played.now += timedelta(seconds=1)
            await played.round(reconciler)

    asyncio.run(watched())
    assert 2 <= played.api.calls.count("apply_status MacroInstance llama") <= 4


def test_what_cannot_be_told_holds_nothing_up() -> None:
    played = PlayedDeployment()
    played.apply(resource())

    def refuse(verb: str) -> None:
        if played.api.calls[-1].startswith("apply Event"):
            raise ApiError(403, "no events here", "Forbidden")

    played.api.before_call = refuse
    asyncio.run(settle(played, played.reconciler()))
    assert condition(played, "Ready")["status"] == "True"


def test_what_happened_is_told_once_the_status_can_be_written() -> None:
    played, reconciler = settled(resource(3))
    for event in played.api.all(EVENT):
        played.api.remove(EVENT, event)
    played.apply(resource(4))

    def refuse(verb: str) -> None:
        if verb == "apply_status":
            raise ApiError(None, "no answer")

    played.api.before_call = refuse
    with pytest.raises(ApiError, match="no answer"):
        asyncio.run(played.round(reconciler))
    assert "instance-3" in played.pods()
    played.api.before_call = lambda verb: None
    asyncio.run(played.round(reconciler))
    assert {"InstanceAdded", "ScaledUp"} <= events(played)


# -- a wrong spec
def test_a_spec_that_cannot_be_used_changes_nothing_but_the_status() -> None:
    played, reconciler = settled(resource(3))
    before = set(played.pods())
    played.apply(resource(5, mitosis={"lowerBound": 4, "upperBound": 4}))
    played.api.calls.clear()
    assert asyncio.run(played.round(reconciler)) is Pace.LATER
    assert set(played.pods()) == before
    assert Counter(call.split()[0] for call in played.api.calls) == {"apply_status": 1, "apply": 1}
    degraded = condition(played, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "InvalidSpec")
    assert "InvalidSpec" in events(played)
    played.apply(resource(4))
    asyncio.run(settle(played, reconciler))
    assert condition(played, "Degraded")["status"] == "False"
    assert len(played.pods()) == 4
