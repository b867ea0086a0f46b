"""Reconciles handle others' changes to the objects of a MacroInstance."""

import asyncio
import base64
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from support.fake_deployment import NAME, NAMESPACE, FakeDeployment, resource
from support.fake_reconciles import condition, settle, settled

from macroserve.api.keys import Purpose, derived_key
from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import ApiError
from macroserve.operator.k8s.kinds import DEPLOYMENT, POD, SECRET, SERVICE


def test_deleted_object_is_made_again() -> None:
    fake, reconciler = settled(resource())
    service = next(obj for obj in fake.api.all(SERVICE) if obj["metadata"]["name"] == NAME)
    fake.api.remove(SERVICE, service)
    asyncio.run(settle(fake, reconciler))
    assert NAME in {obj["metadata"]["name"] for obj in fake.api.all(SERVICE)}


def test_changed_object_is_restored_once() -> None:
    fake, reconciler = settled(resource())
    service = next(obj for obj in fake.api.all(SERVICE) if obj["metadata"]["name"] == NAME)
    service["spec"]["ports"] = [{"port": 1}]
    service["spec"]["another's"] = "stays"
    fake.api.put(SERVICE, service)
    asyncio.run(settle(fake, reconciler))
    service = next(obj for obj in fake.api.all(SERVICE) if obj["metadata"]["name"] == NAME)
    assert service["spec"]["ports"][0]["port"] == names.PUBLIC_PORT
    assert service["spec"]["another's"] == "stays"


def test_foreign_object_of_the_same_name_is_not_adopted() -> None:
    fake = FakeDeployment()
    fake.apply(resource())
    theirs = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": {"theirs": True}}
    fake.api.put(SERVICE, theirs)
    asyncio.run(fake.reconcile(fake.reconciler()))
    found = next(obj for obj in fake.api.all(SERVICE) if obj["metadata"]["name"] == NAME)
    assert found["spec"] == {"theirs": True}
    degraded = condition(fake, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "NameTaken")
    assert "Service llama already exists" in degraded["message"]
    assert fake.pods(), "the rest goes on"


def test_foreign_pod_of_the_same_name_is_not_adopted() -> None:
    fake = FakeDeployment()
    fake.apply(resource())
    theirs = {"metadata": {"name": "llama-instance-1", "namespace": NAMESPACE, "labels": {}}}
    fake.api.put(POD, {**theirs, "spec": {"containers": []}})
    fake.pods = lambda component="instance": {}  # type: ignore[method-assign]
    asyncio.run(fake.reconcile(fake.reconciler()))
    assert condition(fake, "Degraded")["reason"] == "NameTaken"


def test_refused_pod_holds_up_no_other_action() -> None:
    fake = FakeDeployment()
    fake.apply(resource())

    def refuse(verb: str) -> None:
        if verb == "create" and fake.api.calls[-1].endswith("instance-1"):
            raise ApiError(422, "spec.containers[0].image: Required value", "Invalid")

    fake.api.before_call = refuse
    asyncio.run(fake.reconcile(fake.reconciler()))
    assert set(fake.pods()) == {"instance-0", "instance-2"}
    degraded = condition(fake, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "Invalid")
    assert "spec.containers[0].image: Required value" in degraded["message"]


def test_tokens_created_by_a_user_are_used() -> None:
    fake = FakeDeployment()
    fake.apply(resource())
    data = {"secret": "czE=", "admin-token": "YTE="}
    metadata = {"name": "llama-tokens", "namespace": NAMESPACE}
    fake.api.put(SECRET, {"metadata": metadata, "data": data})
    asyncio.run(settle(fake, fake.reconciler()))
    (secret,) = fake.api.all(SECRET)
    assert data.items() <= secret["data"].items()


def test_tokens_that_a_head_refuses_are_read_again() -> None:
    fake, reconciler = settled(resource())
    asyncio.run(fake.reconcile(reconciler))  # which has just looked
    (secret,) = fake.api.all(SECRET)
    secret["data"]["admin-token"] = base64.b64encode(b"another").decode()
    fake.api.put(SECRET, secret)
    fake.head_token = "another"
    asyncio.run(fake.reconcile(reconciler))
    assert condition(fake, "Progressing")["status"] == "True"
    asyncio.run(fake.reconcile(reconciler))
    assert condition(fake, "Progressing")["status"] == "False"


def test_head_before_it_reads_a_new_admin_token_is_called_with_either() -> None:
    fake, reconciler = settled(resource())
    (secret,) = fake.api.all(SECRET)
    fake.head_token = base64.b64decode(secret["data"]["admin-token"]).decode()
    secret["data"]["admin-token"] = encoded("the next")
    fake.api.put(SECRET, secret)
    for token in (fake.head_token, "the next"):
        fake.head_token = token
        fake.now += timedelta(seconds=10)
        asyncio.run(fake.reconcile(reconciler))
        assert condition(fake, "Progressing")["status"] == "False"


def test_tokens_created_concurrently_are_used() -> None:
    fake = FakeDeployment()
    fake.apply(resource())
    metadata = {"name": "llama-tokens", "namespace": NAMESPACE}
    data = {"secret": "czE=", "admin-token": "YTE="}

    def overtake(verb: str) -> None:
        if fake.api.calls[-1] == "create Secret llama-tokens":
            fake.api.put(SECRET, {"metadata": metadata, "data": data})

    fake.api.before_call = overtake
    asyncio.run(fake.reconcile(fake.reconciler()))
    assert len(fake.pods()) == 3
    (secret,) = fake.api.all(SECRET)
    assert data.items() <= secret["data"].items()


@pytest.mark.parametrize(
    ("state", "waited_s"),
    [({"waiting": {"reason": "ContainerCreating"}}, 0), ({"running": {}}, 10)],
)
def test_deleted_tokens_are_created_again_before_a_pod_needs_them(
    state: dict[str, object], waited_s: float
) -> None:
    fake, reconciler = settled(resource())
    (before,) = fake.api.all(SECRET)
    fake.api.remove(SECRET, before)
    in_state(fake, state)
    fake.now += timedelta(seconds=waited_s)
    asyncio.run(fake.reconcile(reconciler))
    (after,) = fake.api.all(SECRET)
    assert after["data"] == before["data"]


def test_keys_of_a_changed_secret_precede_the_former_for_ten_minutes() -> None:
    fake, reconciler = settled(resource())
    (before,) = fake.api.all(SECRET)
    former = keys(before)
    fake.api.put(SECRET, before | {"data": before["data"] | {"secret": encoded("new")}})
    fake.now += timedelta(seconds=10)
    asyncio.run(fake.reconcile(reconciler))
    new = derived_key("new", Purpose.HANDLES)
    assert keys(next(fake.api.all(SECRET))) == [new, *former]
    # Another operator goes on from there.
    reconciler = fake.reconciler()
    for minutes, expected in ((9, [new, *former]), (2, [new])):
        fake.now += timedelta(minutes=minutes)
        asyncio.run(fake.reconcile(reconciler))
        assert keys(next(fake.api.all(SECRET))) == expected
    assert condition(fake, "Ready")["status"] == "True"


def test_secret_of_a_user_gets_its_keys_before_pods_mount_them() -> None:
    fake = FakeDeployment()
    fake.apply(resource())
    data = {"secret": encoded("s"), "admin-token": encoded("a")}
    metadata = {"name": "llama-tokens", "namespace": NAMESPACE}
    fake.api.put(SECRET, {"metadata": metadata, "data": data})

    def must_have_keys(verb: str) -> None:
        if fake.api.calls[-1].startswith(("create Pod", "apply Deployment")):
            assert keys(next(fake.api.all(SECRET))) == [derived_key("s", Purpose.HANDLES)]

    fake.api.before_call = must_have_keys
    asyncio.run(settle(fake, fake.reconciler()))
    assert len(fake.pods()) == 3


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def keys(secret: Mapping[str, Any]) -> list[str]:
    return base64.b64decode(secret["data"]["key-handles"]).decode().split()


def test_lost_tokens_are_replaced_once_no_pod_has_them() -> None:
    fake, _ = settled(resource())
    in_state(fake, {"running": {}})
    (before,) = fake.api.all(SECRET)
    fake.api.remove(SECRET, before)
    reconciler = fake.reconciler()
    asyncio.run(fake.reconcile(reconciler))
    degraded = condition(fake, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "TokensUnusable")
    assert "The Secret llama-tokens is missing" in degraded["message"]
    assert not list(fake.api.all(SECRET))
    for pod in fake.api.all(POD):
        fake.end(pod)
    asyncio.run(settle(fake, reconciler))
    (after,) = fake.api.all(SECRET)
    assert after["data"] != before["data"]
    assert condition(fake, "Ready")["status"] == "True"


def in_state(fake: FakeDeployment, state: dict[str, object]) -> None:
    for pod in fake.api.all(POD):
        pod["status"]["containerStatuses"] = [{"name": "engine", "ready": True, "state": state}]
        fake.api.put(POD, pod)


def test_unusable_tokens_are_reported_as_a_problem() -> None:
    fake = FakeDeployment()
    fake.apply(resource())
    metadata = {"name": "llama-tokens", "namespace": NAMESPACE}
    fake.api.put(SECRET, {"metadata": metadata, "data": {"secret": "czE="}})
    asyncio.run(fake.reconcile(fake.reconciler()))
    degraded = condition(fake, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "TokensUnusable")
    assert not fake.pods()


def test_missing_api_keys_are_reported_while_earlier_ingresses_serve() -> None:
    fake = FakeDeployment()
    fake.apply(resource())
    reconciler = fake.reconciler()
    asyncio.run(settle(fake, reconciler))
    wanted = resource(ingress={"replicas": 2, "apiKeysSecret": "keys"})
    fake.apply(wanted)
    asyncio.run(fake.reconcile(reconciler))
    ingress = next(d for d in fake.api.all(DEPLOYMENT) if "ingress" in d["metadata"]["name"])
    status = {"replicas": 3, "updatedReplicas": 1, "readyReplicas": 2}
    fake.api.put(DEPLOYMENT, {**ingress, "status": status})
    asyncio.run(fake.reconcile(reconciler))
    assert condition(fake, "Degraded")["reason"] == "SecretNotFound"


def test_missing_api_keys_are_reported_until_they_exist() -> None:
    wanted = resource(ingress={"replicas": 1, "apiKeysSecret": "keys"})
    fake = FakeDeployment()
    fake.apply(wanted)
    reconciler = fake.reconciler()
    asyncio.run(fake.reconcile(reconciler))
    assert condition(fake, "Degraded")["reason"] == "SecretNotFound"
    fake.api.put(SECRET, {"metadata": {"name": "keys", "namespace": NAMESPACE}})
    asyncio.run(settle(fake, reconciler))
    assert condition(fake, "Degraded")["status"] == "False"
