"""A MacroInstance is deleted in order."""

import asyncio
from datetime import timedelta

import pytest
from support.fake_deployment import FakeDeployment, resource
from support.fake_reconciles import condition, events, settled

from macroserve.operator.apply.deletion import PATIENCE
from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import ApiError
from macroserve.operator.k8s.kinds import BUDGET, CONFIG_MAP, DEPLOYMENT, MACROINSTANCE, SERVICE
from macroserve.operator.reconcile.reconciler import Requeue


def test_deletion_ends_the_ingress_before_the_other_parts() -> None:
    fake, reconciler = settled(resource())
    fake.delete()
    assert asyncio.run(fake.reconcile(reconciler)) is Requeue.SOON
    assert [obj["metadata"]["name"] for obj in fake.api.all(DEPLOYMENT)] == ["llama-head"]
    assert not any("deletionTimestamp" in pod["metadata"] for pod in fake.pods().values())
    assert condition(fake, "Progressing")["reason"] == "Deleting"
    assert "Deleting" in events(fake)
    found = fake.resource()
    assert found and found["metadata"]["finalizers"] == [names.FINALIZER]

    fake.kubelets()
    assert asyncio.run(fake.reconcile(reconciler)) is Requeue.STOP
    assert list(fake.api.all(DEPLOYMENT)) == []
    assert all("deletionTimestamp" in pod["metadata"] for pod in fake.pods().values())
    found = fake.resource()
    assert found and found["metadata"]["finalizers"] == []


def test_deletion_with_requests_that_do_not_end_completes() -> None:
    fake, reconciler = settled(resource())
    fake.delete()
    asyncio.run(fake.reconcile(reconciler))
    fake.now += PATIENCE - timedelta(seconds=1)
    assert asyncio.run(fake.reconcile(reconciler)) is Requeue.SOON
    fake.now += timedelta(seconds=2)
    assert asyncio.run(fake.reconcile(reconciler)) is Requeue.STOP


def test_macroinstance_without_an_operator_is_deleted_in_order() -> None:
    fake, _ = settled(resource())
    fake.delete()
    fake.now += 10 * PATIENCE
    reconciler = fake.reconciler()
    assert asyncio.run(fake.reconcile(reconciler)) is Requeue.SOON
    assert [obj["metadata"]["name"] for obj in fake.api.all(DEPLOYMENT)] == ["llama-head"]
    assert not any("deletionTimestamp" in pod["metadata"] for pod in fake.pods().values())
    fake.now += PATIENCE
    assert asyncio.run(fake.reconcile(reconciler)) is Requeue.STOP


def test_macroinstance_deleted_before_its_first_reconcile_is_left_alone() -> None:
    fake = FakeDeployment()
    fake.apply(resource())
    reconciler, gone = fake.reconciler(), fake.resource()
    assert gone is not None
    fake.api.remove(MACROINSTANCE, gone)
    assert asyncio.run(reconciler.reconcile(gone)) is Requeue.STOP
    assert not fake.pods()


def test_macroinstance_finalized_by_another_replica_is_gone() -> None:
    fake, reconciler = settled(resource())
    fake.delete()
    asyncio.run(fake.reconcile(reconciler))
    fake.kubelets()
    seen = fake.resource()
    assert seen is not None
    fake.api.remove(MACROINSTANCE, seen)
    assert asyncio.run(reconciler.reconcile(seen)) is Requeue.STOP


def test_macroinstance_with_an_invalid_spec_can_be_deleted() -> None:
    fake, reconciler = settled(resource())
    fake.apply(resource(mitosis={"lowerBound": 4, "upperBound": 4}))
    fake.delete()
    asyncio.run(fake.reconcile(reconciler))
    fake.kubelets()
    assert asyncio.run(fake.reconcile(reconciler)) is Requeue.STOP


def test_macroinstance_in_a_terminating_namespace_is_released() -> None:
    fake, reconciler = settled(resource())
    fake.delete()

    def refuse(verb: str) -> None:
        if verb in ("create", "apply", "apply_status"):
            raise ApiError(403, "the namespace is being terminated", "Forbidden")

    fake.api.before_call = refuse
    with pytest.raises(ApiError):
        asyncio.run(fake.reconcile(reconciler))
    fake.kubelets()
    assert asyncio.run(fake.reconcile(reconciler)) is Requeue.STOP


def test_macroinstance_deleted_unseen_is_not_reconciled_any_more() -> None:
    fake, reconciler = settled(resource())
    gone = fake.resource()
    assert gone is not None
    gone["metadata"]["generation"] += 1
    gone["spec"]["instances"] = 4
    fake.api.remove(MACROINSTANCE, gone)
    assert asyncio.run(reconciler.reconcile(gone)) is Requeue.STOP


def test_pods_of_an_earlier_macroinstance_of_that_name_are_not_taken_over() -> None:
    fake, _ = settled(resource(2))
    metadata = resource(2)["metadata"] | {"uid": "uid-second"}
    fake.api.put(MACROINSTANCE, {**resource(2), "metadata": metadata})
    for kind in (CONFIG_MAP, SERVICE, DEPLOYMENT, BUDGET):
        for obj in fake.api.all(kind):
            fake.api.remove(kind, obj)
    asyncio.run(fake.reconcile(fake.reconciler()))
    assert set(fake.pods()) == {"instance-0", "instance-1", "instance-2", "instance-3"}
