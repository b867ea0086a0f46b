"""The end of a MacroInstance."""

import asyncio
from datetime import timedelta

import pytest
from support.played_deployment import PlayedDeployment, resource
from support.played_rounds import condition, events, settled

from macroserve.operator.apply.deletion import PATIENCE
from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import ApiError
from macroserve.operator.k8s.kinds import BUDGET, CONFIG_MAP, DEPLOYMENT, MACROINSTANCE, SERVICE
from macroserve.operator.reconcile.reconciler import Pace


def test_the_ingress_ends_before_what_it_stands_on() -> None:
    played, reconciler = settled(resource())
    played.delete()
    assert asyncio.run(played.round(reconciler)) is Pace.SOON
    assert [obj["metadata"]["name"] for obj in played.api.all(DEPLOYMENT)] == ["llama-head"]
    assert not any("deletionTimestamp" in pod["metadata"] for pod in played.pods().values())
    assert condition(played, "Progressing")["reason"] == "Deleting"
    assert "Deleting" in events(played)
    found = played.resource()
    assert found and found["metadata"]["finalizers"] == [names.FINALIZER]

    played.kubelets()
    assert asyncio.run(played.round(reconciler)) is Pace.NEVER
    assert list(played.api.all(DEPLOYMENT)) == []
    assert all("deletionTimestamp" in pod["metadata"] for pod in played.pods().values())
    found = played.resource()
    assert found and found["metadata"]["finalizers"] == []


def test_the_end_does_not_wait_for_ever() -> None:
    played, reconciler = settled(resource())
    played.delete()
    asyncio.run(played.round(reconciler))
    played.now += PATIENCE - timedelta(seconds=1)
    assert asyncio.run(played.round(reconciler)) is Pace.SOON
    played.now += timedelta(seconds=2)
    assert asyncio.run(played.round(reconciler)) is Pace.NEVER


def test_one_that_no_operator_looked_after_ends_in_order_all_the_same() -> None:
    played, _ = settled(resource())
    played.delete()
    played.now += 10 * PATIENCE
    reconciler = played.reconciler()
    assert asyncio.run(played.round(reconciler)) is Pace.SOON
    assert [obj["metadata"]["name"] for obj in played.api.all(DEPLOYMENT)] == ["llama-head"]
    assert not any("deletionTimestamp" in pod["metadata"] for pod in played.pods().values())
    played.now += PATIENCE
    assert asyncio.run(played.round(reconciler)) is Pace.NEVER


def test_one_that_is_gone_before_its_first_round_is_not_looked_after() -> None:
    played = PlayedDeployment()
    played.apply(resource())
    reconciler, gone = played.reconciler(), played.resource()
    assert gone is not None
    played.api.remove(MACROINSTANCE, gone)
    assert asyncio.run(reconciler.round(gone)) is Pace.NEVER
    assert not played.pods()


def test_one_whose_end_another_replica_saw_to_is_gone() -> None:
    played, reconciler = settled(resource())
    played.delete()
    asyncio.run(played.round(reconciler))
    played.kubelets()
    seen = played.resource()
    assert seen is not None
    played.api.remove(MACROINSTANCE, seen)
    assert asyncio.run(reconciler.round(seen)) is Pace.NEVER


def test_one_with_a_spec_that_cannot_be_used_can_be_deleted() -> None:
    played, reconciler = settled(resource())
    played.apply(resource(mitosis={"lowerBound": 4, "upperBound": 4}))
    played.delete()
    asyncio.run(played.round(reconciler))
    played.kubelets()
    assert asyncio.run(played.round(reconciler)) is Pace.NEVER


def test_a_namespace_that_ends_refuses_what_is_told_and_lets_it_go() -> None:
    played, reconciler = settled(resource())
    played.delete()

    def refuse(verb: str) -> None:
        if verb in ("create", "apply", "apply_status"):
            raise ApiError(403, "the namespace is being terminated", "Forbidden")

    played.api.before_call = refuse
    with pytest.raises(ApiError):
        asyncio.run(played.round(reconciler))
    played.kubelets()
    assert asyncio.run(played.round(reconciler)) is Pace.NEVER


def test_one_that_is_gone_unseen_is_not_looked_after_any_more() -> None:
    played, reconciler = settled(resource())
    gone = played.resource()
    assert gone is not None
    gone["metadata"]["generation"] += 1
    gone["spec"]["instances"] = 4
    played.api.remove(MACROINSTANCE, gone)
    assert asyncio.run(reconciler.round(gone)) is Pace.NEVER


def test_pods_of_an_earlier_macroinstance_of_that_name_are_not_taken_over() -> None:
    played, _ = settled(resource(2))
    metadata = resource(2)["metadata"] | {"uid": "uid-second"}
    played.api.put(MACROINSTANCE, {**resource(2), "metadata": metadata})
    for kind in (CONFIG_MAP, SERVICE, DEPLOYMENT, BUDGET):
        for obj in played.api.all(kind):
            played.api.remove(kind, obj)
    asyncio.run(played.round(played.reconciler()))
    assert set(played.pods()) == {"instance-0", "instance-1", "instance-2", "instance-3"}
