"""Rounds of a MacroInstance: what they make, and that they get there whatever is in their way."""

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.played_api import Raw
from support.played_deployment import NAME, NAMESPACE, PlayedDeployment, resource

from macroserve.operator import names
from macroserve.operator.api import ApiError
from macroserve.operator.departure import PATIENCE
from macroserve.operator.kinds import (
    BUDGET,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    MACROINSTANCE,
    POD,
    SECRET,
    SERVICE,
)
from macroserve.operator.reconcile import Pace, Reconciler

MANY_ROUNDS = 60


async def settle(played: PlayedDeployment, reconciler: Reconciler) -> None:
    """Rounds and nodes take turns until there is nothing to do, also when budgets are over."""
    idle = 0
    for _ in range(MANY_ROUNDS):
        played.api.calls.clear()
        played.requests.clear()
        await played.round(reconciler)
        played.kubelets()
        played.restarted()
        played.now += timedelta(seconds=60)
        idle = 0 if played.api.calls or orders(played) else idle + 1
        if idle == 5:
            return
    raise AssertionError(f"still busy: {played.api.calls} {orders(played)}")


def orders(played: PlayedDeployment) -> list[str]:
    return [request for request in played.requests if not request.startswith("GET")]


def settled(wanted: Raw) -> tuple[PlayedDeployment, Reconciler]:
    played = PlayedDeployment()
    played.apply(wanted)
    reconciler = played.reconciler()
    asyncio.run(settle(played, reconciler))
    return played, reconciler


def cells(played: PlayedDeployment) -> dict[str, set[str]]:
    return {cell: set(members) for cell, members in played.cells.items()}


def condition(played: PlayedDeployment, kind: str) -> Raw:
    found = played.resource()
    assert found is not None
    return next(c for c in found["status"]["conditions"] if c["type"] == kind)


def events(played: PlayedDeployment) -> set[str]:
    return {event["reason"] for event in played.api.all(EVENT)}


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


def test_a_round_with_nothing_to_do_asks_nothing_of_the_api_server() -> None:
    played, reconciler = settled(resource())
    played.api.calls.clear()
    played.requests.clear()
    assert asyncio.run(played.round(reconciler)) is Pace.LATER
    assert played.api.calls == []
    assert played.requests == ["GET /admin/v1/report", "GET /admin/v1/cells"]


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


# -- removal


def test_a_working_instance_is_drained_before_it_is_deleted() -> None:
    played, reconciler = settled(resource(3))
    for engine in played.engines.values():
        engine.tokens = 100

    async def shrink() -> None:
        played.apply(resource(2))
        await played.round(reconciler)
        (victim,) = (e for e in played.engines.values() if e.draining)
        pod = played.pods()[victim.name]
        assert names.DRAINING_SINCE in pod["metadata"]["annotations"]
        await played.round(reconciler)
        assert "deletionTimestamp" not in played.pods()[victim.name]["metadata"]
        victim.tokens = 0
        await played.round(reconciler)
        assert "deletionTimestamp" in played.pods()[victim.name]["metadata"]
        assert victim.name not in played.cells["cell-0"]

    asyncio.run(shrink())
    assert played.cut == []


def test_a_drain_ends_with_its_budget() -> None:
    played, reconciler = settled(resource(3))
    for engine in played.engines.values():
        engine.tokens = 100

    async def shrink() -> None:
        played.apply(resource(2))
        await played.round(reconciler)
        played.now += timedelta(seconds=69)  # 30 s and 4 * 100 tokens * 0.1 s
        await played.round(reconciler)
        assert not any("deletionTimestamp" in p["metadata"] for p in played.pods().values())
        played.now += timedelta(seconds=2)
        await played.round(reconciler)
        assert any("deletionTimestamp" in p["metadata"] for p in played.pods().values())

    asyncio.run(shrink())


def test_a_pod_that_somebody_else_deletes_takes_no_new_requests_and_is_replaced() -> None:
    played, reconciler = settled(resource(3))
    leaving = played.pods()["instance-1"]
    asyncio.run(played.api.delete(POD, NAMESPACE, leaving["metadata"]["name"]))
    asyncio.run(played.round(reconciler))
    assert played.cells["cell-0"]["instance-1"].draining
    assert "instance-3" in played.pods()


def test_a_pod_on_a_lost_node_is_replaced_and_erased() -> None:
    played, reconciler = settled(resource(3))
    played.lose(played.pods()["instance-1"], kubelet_only=False)
    asyncio.run(played.round(reconciler))
    assert set(played.pods()) == {"instance-0", "instance-2", "instance-3"}


def test_where_only_the_kubelet_is_dead_the_instance_finishes_first() -> None:
    played, reconciler = settled(resource(3))
    engine = played.engines["llama-instance-1"]
    engine.tokens = 10
    played.lose(played.pods()["instance-1"], kubelet_only=True)
    asyncio.run(played.round(reconciler))
    assert engine.draining
    assert {"instance-1", "instance-3"} <= set(played.pods())
    engine.tokens = 0
    asyncio.run(played.round(reconciler))
    assert "instance-1" not in played.pods()
    asyncio.run(played.round(reconciler))
    assert "instance-1" not in played.cells["cell-0"]


def test_instances_that_serve_are_left_alone_while_the_head_is_away() -> None:
    played, reconciler = settled(resource(4))
    for engine in played.engines.values():
        engine.tokens = 100
    played.head_answers = False
    played.apply(resource(2))
    for _ in range(5):
        asyncio.run(played.round(reconciler))
    assert not any("deletionTimestamp" in pod["metadata"] for pod in played.pods().values())
    assert condition(played, "Progressing")["status"] == "True"


def test_a_head_that_comes_back_empty_gets_its_cells_again() -> None:
    played, reconciler = settled(resource(6))
    before = cells(played)
    assert len(before) == 2
    played.restart_head()
    asyncio.run(settle(played, reconciler))
    assert cells(played) == before
    assert len(played.pods()) == 6


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


# -- what others do to the objects


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
    assert secret["data"] == data


def test_tokens_that_a_head_refuses_are_read_again() -> None:
    played, reconciler = settled(resource())
    (secret,) = played.api.all(SECRET)
    secret["data"]["admin-token"] = base64.b64encode(b"another").decode()
    played.api.put(SECRET, secret)
    played.head_token = "another"
    asyncio.run(played.round(reconciler))
    assert condition(played, "Progressing")["status"] == "True"
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
    assert [secret["data"] for secret in played.api.all(SECRET)] == [data]


def test_tokens_that_cannot_be_used_are_told_of() -> None:
    played = PlayedDeployment()
    played.apply(resource())
    metadata = {"name": "llama-tokens", "namespace": NAMESPACE}
    played.api.put(SECRET, {"metadata": metadata, "data": {"secret": "czE="}})
    asyncio.run(played.round(played.reconciler()))
    degraded = condition(played, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "TokensUnusable")
    assert not played.pods()


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


# -- the end


def test_the_ingress_ends_before_what_it_stands_on() -> None:
    played, reconciler = settled(resource())
    played.delete()
    assert asyncio.run(played.round(reconciler)) is Pace.SOON
    assert [obj["metadata"]["name"] for obj in played.api.all(DEPLOYMENT)] == ["llama-head"]
    assert not any("deletionTimestamp" in pod["metadata"] for pod in played.pods().values())
    assert condition(played, "Progressing")["reason"] == "Deleting"
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


# -- whatever is in the way

Act = Callable[[PlayedDeployment], None]


def _of_a_pod(act: Callable[[PlayedDeployment, Raw], None]) -> Callable[[int], Act]:
    def for_number(number: int) -> Act:
        def acted(played: PlayedDeployment) -> None:
            pods = [pod for _, pod in sorted(played.pods().items())]
            if pods:
                act(played, pods[number % len(pods)])

        return acted

    return for_number


def _work(played: PlayedDeployment, pod: Raw) -> None:
    if engine := played.engines.get(pod["metadata"]["name"]):
        engine.tokens = 0 if engine.tokens else 500


def _delete(played: PlayedDeployment, pod: Raw) -> None:
    pod["metadata"].setdefault("deletionTimestamp", played.now.isoformat())
    played.api.put(POD, pod)


def _time_passes(played: PlayedDeployment) -> None:
    played.now += timedelta(seconds=20)


def _break(after: int) -> Act:
    """The call so many calls from now fails, and the next round finds what that left."""

    def broken(played: PlayedDeployment) -> None:
        left = [after]

        def count(what: str) -> None:
            left[0] -= 1
            if left[0] == 0 and what.startswith("/"):
                raise aiohttp.ClientConnectionError("cut")
            if left[0] == 0:
                raise ApiError(None, "cut")

        played.api.before_call = played.before_request = count

    return broken


numbers = st.integers(0, 9)
acts = st.one_of(
    st.builds(lambda n: lambda played: played.apply(resource(n)), st.integers(1, 9)),
    numbers.map(_of_a_pod(_work)),
    numbers.map(_of_a_pod(_delete)),
    numbers.map(_of_a_pod(lambda played, pod: played.crash(pod))),
    numbers.map(_of_a_pod(lambda played, pod: played.fail(pod))),
    numbers.map(_of_a_pod(lambda played, pod: played.end(pod))),
    numbers.map(_of_a_pod(lambda played, pod: played.lose(pod, kubelet_only=False))),
    numbers.map(_of_a_pod(lambda played, pod: played.lose(pod, kubelet_only=True))),
    st.integers(1, 12).map(_break),
    st.sampled_from(
        [
            PlayedDeployment.kubelets,
            PlayedDeployment.restarted,
            PlayedDeployment.restart_head,
            _time_passes,
        ]
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(acts, st.booleans()), max_size=25), st.integers(1, 8))
def test_the_wish_is_reached_and_no_work_is_cut_off(
    history: list[tuple[Act, bool]], wanted: int
) -> None:
    """history: what happens between rounds, and whether the operator is killed after the round."""
    played = PlayedDeployment()
    played.apply(resource(3))

    async def live() -> None:
        reconciler = played.reconciler()
        for act, is_killed in history:
            act(played)
            try:
                await played.round(reconciler)
            except ApiError:
                is_killed = True
            if is_killed:
                reconciler = played.reconciler()
        played.api.before_call = played.before_request = lambda what: None
        for engine in played.engines.values():
            engine.tokens = 0
        played.apply(resource(wanted))
        await settle(played, played.reconciler())

    asyncio.run(live())
    assert played.cut == []
    pods = played.pods()
    assert len(pods) == wanted
    members = [name for cell in played.cells.values() for name in cell]
    assert Counter(members) == Counter(pods.keys())
    assert all(len(cell) <= 4 for cell in played.cells.values())
    for name, pod in pods.items():
        assert name in played.cells[pod["metadata"]["labels"][names.CELL]]
    assert condition(played, "Ready")["status"] == "True"
