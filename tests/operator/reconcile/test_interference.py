"""What others do to the objects of a MacroInstance, or did before there was one."""

import asyncio
import base64
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from support.played_deployment import NAME, NAMESPACE, PlayedDeployment, resource
from support.played_rounds import condition, settle, settled

from macroserve.api.keys import Purpose, derived_key
from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import ApiError
from macroserve.operator.k8s.kinds import DEPLOYMENT, POD, SECRET, SERVICE


def test_a_deleted_object_is_made_again() -> None:
    played, reconciler = settled(resource())
    service = next(obj for obj in played.api.all(SERVICE) if obj["metadata"]["name"] == NAME)
    played.api.remove(SERVICE, service)
    asyncio.run(settle(played, reconciler))
    assert NAME in {obj["metadata"]["name"] for obj in played.api.all(SERVICE)}


def test_a_changed_object_is_put_right_once() -> None:
    played, reconciler = settled(resource())
    service = next(obj for obj in played.api.all(SERVICE) if obj["metadata"]["name"] == NAME)
    service["spec"]["ports"] = [{"port": 1}]
    service["spec"]["another's"] = "stays"
    played.api.put(SERVICE, service)
    asyncio.run(settle(played, reconciler))
    service = next(obj for obj in played.api.all(SERVICE) if obj["metadata"]["name"] == NAME)
    assert service["spec"]["ports"][0]["port"] == names.PUBLIC_PORT
    assert service["spec"]["another's"] == "stays"


def test_an_object_of_somebody_else_is_not_taken_over() -> None:
    played = PlayedDeployment()
    played.apply(resource())
    theirs = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": {"theirs": True}}
    played.api.put(SERVICE, theirs)
    asyncio.run(played.round(played.reconciler()))
    found = next(obj for obj in played.api.all(SERVICE) if obj["metadata"]["name"] == NAME)
    assert found["spec"] == {"theirs": True}
    degraded = condition(played, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "NameTaken")
    assert "Service llama exists already" in degraded["message"]
    assert played.pods(), "the rest goes on"


def test_a_pod_of_somebody_else_is_not_taken_over() -> None:
    played = PlayedDeployment()
    played.apply(resource())
    theirs = {"metadata": {"name": "llama-instance-1", "namespace": NAMESPACE, "labels": {}}}
    played.api.put(POD, {**theirs, "spec": {"containers": []}})
    played.pods = lambda component="instance": {}  # type: ignore[method-assign]
    asyncio.run(played.round(played.reconciler()))
    assert condition(played, "Degraded")["reason"] == "NameTaken"


def test_a_pod_that_is_refused_holds_up_nothing_else() -> None:
    played = PlayedDeployment()
    played.apply(resource())

    def refuse(verb: str) -> None:
        if verb == "create" and played.api.calls[-1].endswith("instance-1"):
            raise ApiError(422, "spec.containers[0].image: Required value", "Invalid")

    played.api.before_call = refuse
    asyncio.run(played.round(played.reconciler()))
    assert set(played.pods()) == {"instance-0", "instance-2"}
    degraded = condition(played, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "Invalid")
    assert "spec.containers[0].image: Required value" in degraded["message"]


def test_tokens_that_a_person_made_are_used() -> None:
    played = PlayedDeployment()
    played.apply(resource())
    data = {"secret": "czE=", "admin-token": "YTE="}
    metadata = {"name": "llama-tokens", "namespace": NAMESPACE}
    played.api.put(SECRET, {"metadata": metadata, "data": data})
    asyncio.run(settle(played, played.reconciler()))
    (secret,) = played.api.all(SECRET)
    assert data.items() <= secret["data"].items()


def test_tokens_that_a_head_refuses_are_read_again() -> None:
    played, reconciler = settled(resource())
    asyncio.run(played.round(reconciler))  # which has just looked
    (secret,) = played.api.all(SECRET)
    secret["data"]["admin-token"] = base64.b64encode(b"another").decode()
    played.api.put(SECRET, secret)
    played.head_token = "another"
    asyncio.run(played.round(reconciler))
    assert condition(played, "Progressing")["status"] == "True"
    asyncio.run(played.round(reconciler))
    assert condition(played, "Progressing")["status"] == "False"


def test_a_head_that_has_yet_to_take_over_an_admin_token_is_spoken_to_with_either() -> None:
    played, reconciler = settled(resource())
    (secret,) = played.api.all(SECRET)
    played.head_token = base64.b64decode(secret["data"]["admin-token"]).decode()
    secret["data"]["admin-token"] = encoded("the next")
    played.api.put(SECRET, secret)
    for token in (played.head_token, "the next"):
        played.head_token = token
        played.now += timedelta(seconds=10)
        asyncio.run(played.round(reconciler))
        assert condition(played, "Progressing")["status"] == "False"


def test_tokens_that_somebody_makes_at_the_same_time_are_used() -> None:
    played = PlayedDeployment()
    played.apply(resource())
    metadata = {"name": "llama-tokens", "namespace": NAMESPACE}
    data = {"secret": "czE=", "admin-token": "YTE="}

    def overtake(verb: str) -> None:
        if played.api.calls[-1] == "create Secret llama-tokens":
            played.api.put(SECRET, {"metadata": metadata, "data": data})

    played.api.before_call = overtake
    asyncio.run(played.round(played.reconciler()))
    assert len(played.pods()) == 3
    (secret,) = played.api.all(SECRET)
    assert data.items() <= secret["data"].items()


@pytest.mark.parametrize(
    ("state", "waited_s"),
    [({"waiting": {"reason": "ContainerCreating"}}, 0), ({"running": {}}, 10)],
)
def test_tokens_that_are_deleted_are_there_again_at_once_when_a_pod_needs_them(
    state: dict[str, object], waited_s: float
) -> None:
    played, reconciler = settled(resource())
    (before,) = played.api.all(SECRET)
    played.api.remove(SECRET, before)
    in_state(played, state)
    played.now += timedelta(seconds=waited_s)
    asyncio.run(played.round(reconciler))
    (after,) = played.api.all(SECRET)
    assert after["data"] == before["data"]


def test_a_changed_secrets_keys_stand_before_the_former_ones_for_ten_minutes() -> None:
    played, reconciler = settled(resource())
    (before,) = played.api.all(SECRET)
    former = keys(before)
    played.api.put(SECRET, before | {"data": before["data"] | {"secret": encoded("new")}})
    played.now += timedelta(seconds=10)
    asyncio.run(played.round(reconciler))
    new = derived_key("new", Purpose.HANDLES)
    assert keys(next(played.api.all(SECRET))) == [new, *former]
    # Another operator goes on from there.
    reconciler = played.reconciler()
    for minutes, expected in ((9, [new, *former]), (2, [new])):
        played.now += timedelta(minutes=minutes)
        asyncio.run(played.round(reconciler))
        assert keys(next(played.api.all(SECRET))) == expected
    assert condition(played, "Ready")["status"] == "True"


def test_a_secret_of_an_earlier_version_gets_its_keys_before_pods_mount_them() -> None:
    played = PlayedDeployment()
    played.apply(resource())
    data = {"secret": encoded("s"), "admin-token": encoded("a")}
    metadata = {"name": "llama-tokens", "namespace": NAMESPACE}
    played.api.put(SECRET, {"metadata": metadata, "data": data})

    def must_have_keys(verb: str) -> None:
        if played.api.calls[-1].startswith(("create Pod", "apply Deployment")):
            assert keys(next(played.api.all(SECRET))) == [derived_key("s", Purpose.HANDLES)]

    played.api.before_call = must_have_keys
    asyncio.run(settle(played, played.reconciler()))
    assert len(played.pods()) == 3


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def keys(secret: Mapping[str, Any]) -> list[str]:
    return base64.b64decode(secret["data"]["key-handles"]).decode().split()


def test_tokens_that_nobody_knows_any_more_are_made_anew_once_no_pod_has_them() -> None:
    played, _ = settled(resource())
    in_state(played, {"running": {}})
    (before,) = played.api.all(SECRET)
    played.api.remove(SECRET, before)
    reconciler = played.reconciler()
    asyncio.run(played.round(reconciler))
    degraded = condition(played, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "TokensUnusable")
    assert "The Secret llama-tokens is gone" in degraded["message"]
    assert not list(played.api.all(SECRET))
    for pod in played.api.all(POD):
        played.end(pod)
    asyncio.run(settle(played, reconciler))
    (after,) = played.api.all(SECRET)
    assert after["data"] != before["data"]
    assert condition(played, "Ready")["status"] == "True"


def in_state(played: PlayedDeployment, state: dict[str, object]) -> None:
    for pod in played.api.all(POD):
        pod["status"]["containerStatuses"] = [{"name": "engine", "ready": True, "state": state}]
        played.api.put(POD, pod)


def test_tokens_that_cannot_be_used_are_told_of() -> None:
    played = PlayedDeployment()
    played.apply(resource())
    metadata = {"name": "llama-tokens", "namespace": NAMESPACE}
    played.api.put(SECRET, {"metadata": metadata, "data": {"secret": "czE="}})
    asyncio.run(played.round(played.reconciler()))
    degraded = condition(played, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "TokensUnusable")
    assert not played.pods()


def test_missing_api_keys_are_told_of_while_earlier_ingresses_serve() -> None:
    played = PlayedDeployment()
    played.apply(resource())
    reconciler = played.reconciler()
    asyncio.run(settle(played, reconciler))
    wanted = resource(ingress={"replicas": 2, "apiKeysSecret": "keys"})
    played.apply(wanted)
    asyncio.run(played.round(reconciler))
    ingress = next(d for d in played.api.all(DEPLOYMENT) if "ingress" in d["metadata"]["name"])
    status = {"replicas": 3, "updatedReplicas": 1, "readyReplicas": 2}
    played.api.put(DEPLOYMENT, {**ingress, "status": status})
    asyncio.run(played.round(reconciler))
    assert condition(played, "Degraded")["reason"] == "SecretNotFound"


def test_missing_api_keys_are_told_of_until_they_are_there() -> None:
    wanted = resource(ingress={"replicas": 1, "apiKeysSecret": "keys"})
    played = PlayedDeployment()
    played.apply(wanted)
    reconciler = played.reconciler()
    asyncio.run(played.round(reconciler))
    assert condition(played, "Degraded")["reason"] == "SecretNotFound"
    played.api.put(SECRET, {"metadata": {"name": "keys", "namespace": NAMESPACE}})
    asyncio.run(settle(played, reconciler))
    assert condition(played, "Degraded")["status"] == "False"
