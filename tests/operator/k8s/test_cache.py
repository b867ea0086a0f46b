"""The store keeps the objects that watches report, and a watch fills it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from support.virtual_time import run

from macroserve.operator.k8s import names
from macroserve.operator.k8s.cache import Store, fingerprint, slim
from macroserve.operator.k8s.client import Api, ApiError
from macroserve.operator.k8s.kinds import POD, SERVICE
from macroserve.operator.k8s.names import Key
from macroserve.operator.k8s.watch import FIRST_LISTS_S, MAX_RETRY_S, RENEW_S, until_listed, watch

LLAMA, QWEN = Key("team", "llama"), Key("team", "qwen")


def obj(name: str, key: Key = LLAMA, version: str = "1", **fields: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "resourceVersion": version,
            "namespace": key.namespace,
            "labels": {names.MACROINSTANCE: key.name},
        },
        "spec": {},
        **fields,
    }


def stored() -> tuple[Store, list[Key]]:
    changed: list[Key] = []
    return Store(changed.append), changed


def test_objects_are_found_by_owner_and_name() -> None:
    store, changed = stored()
    store.put(POD, obj("a"))
    store.put(POD, obj("b", QWEN))
    store.put(SERVICE, obj("c"))
    assert set(store.of(POD, LLAMA)) == {"a"}
    assert set(store.of(POD, QWEN)) == {"b"}
    assert changed == [LLAMA, QWEN, LLAMA]
    store.drop(POD, obj("a"))
    assert store.of(POD, LLAMA) == {}
    assert set(store.of(SERVICE, LLAMA)) == {"c"}


def test_list_of_one_namespace_leaves_the_others() -> None:
    store, changed = stored()
    other = Key("other", "llama")
    store.replace(POD, [obj("a")], "team")
    store.replace(POD, [obj("b", other)], "other")
    assert (set(store.of(POD, LLAMA)), set(store.of(POD, other))) == ({"a"}, {"b"})
    changed.clear()
    store.replace(POD, [], "team")
    assert changed == [LLAMA]
    assert (set(store.of(POD, LLAMA)), set(store.of(POD, other))) == (set(), {"b"})


def test_list_replaces_all_objects_and_notifies_of_differences() -> None:
    store, changed = stored()
    store.replace(POD, [obj("a"), obj("b", QWEN)])
    changed.clear()
    store.replace(POD, [obj("a"), obj("b", QWEN, status={"phase": "Running"})])
    assert changed == [QWEN]
    changed.clear()
    store.replace(POD, [obj("b", QWEN, status={"phase": "Running"})])
    assert changed == [LLAMA]
    assert store.of(POD, LLAMA) == {}


def test_object_that_names_no_macroinstance_is_not_kept() -> None:
    store, changed = stored()
    stray = {"metadata": {"name": "a", "namespace": "team"}, "spec": {}}
    store.put(POD, stray)
    store.drop(POD, stray)
    store.replace(POD, [stray])
    assert changed == []


def test_pod_in_the_store_keeps_few_fields() -> None:
    full = obj("a", status={"phase": "Running"})
    full["metadata"]["managedFields"] = [{"manager": "somebody"}]
    full["spec"] = {
        "nodeName": "node-1",
        "volumes": [{"name": "v"}],
        "containers": [{"name": "engine", "image": "i", "resources": {"limits": {"memory": "1"}}}],
    }
    kept = slim(full)
    assert kept["spec"] == {
        "nodeName": "node-1",
        "containers": [{"name": "engine", "resources": {"limits": {"memory": "1"}}}],
    }
    assert kept["status"] == {"phase": "Running"}
    assert "managedFields" not in kept["metadata"]


def test_object_other_than_a_pod_in_the_store_keeps_of_its_spec_the_replicas() -> None:
    full = obj("a", spec={"replicas": 2, "template": {}, "selector": {}}, data={"k": "v"})
    kept = slim(full)
    assert kept.keys() == {"metadata", "spec", "fingerprint"}
    assert kept["spec"] == {"replicas": 2}


def test_fingerprint_changes_only_with_fields_that_users_may_change() -> None:
    one = obj("a", spec={"replicas": 1}, data={"k": "v"}, status={"x": 1})
    assert fingerprint(one) == fingerprint({**one, "status": {"x": 2}})
    assert fingerprint(one) != fingerprint({**one, "spec": {"replicas": 2}})
    assert fingerprint(one) != fingerprint({**one, "data": {"k": "w"}})
    assert slim(one)["fingerprint"] == fingerprint(one)


class FakeWatch:
    """A fake of lists and watches. `listed` has the results of lists, and the last is repeated;
    `events` has those of watches, which end with an exception or stay silent after the last."""

    def __init__(self, listed: list[list[dict[str, Any]] | Exception]) -> None:
        self.listed = listed
        self.events: list[tuple[str, dict[str, Any]] | Exception] = []
        self.lists: list[float] = []
        self.since: list[str] = []
        self.namespaces: set[str] = set()

    async def list(
        self, kind: object, labels: object, namespace: str
    ) -> tuple[str, list[dict[str, Any]]]:
        self.namespaces.add(namespace)
        self.lists.append(asyncio.get_running_loop().time())
        found = self.listed.pop(0) if len(self.listed) > 1 else self.listed[0]
        if isinstance(found, Exception):
            raise found
        return f"version-{len(self.lists)}", found

    async def watch(
        self, kind: object, labels: object, since: str, server_timeout_s: int, namespace: str
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        self.namespaces.add(namespace)
        self.since.append(since)
        while self.events:
            event = self.events.pop(0)
            if isinstance(event, Exception):
                raise event
            yield event
        await asyncio.Event().wait()

    def start(self, namespace: str = "*") -> tuple[Store, asyncio.Event, asyncio.Task[None]]:
        store, _ = stored()
        listed = asyncio.Event()
        return (
            store,
            listed,
            asyncio.create_task(watch(cast(Api, self), store, POD, listed, namespace)),
        )


def test_watch_follows_a_list() -> None:
    async def main() -> None:
        fake = FakeWatch([[obj("a"), obj("b")]])
        fake.events = [("ADDED", obj("c")), ("DELETED", obj("a")), ("MODIFIED", obj("b"))]
        store, listed, task = fake.start("team")
        await asyncio.sleep(1)
        assert listed.is_set()
        assert fake.namespaces == {"team"}
        assert set(store.of(POD, LLAMA)) == {"b", "c"}
        assert fake.since == ["version-1"]
        task.cancel()

    run(main())


def test_silent_watch_is_renewed_from_its_last_version() -> None:
    async def main() -> None:
        fake = FakeWatch([[obj("a")]])
        fake.events = [("ADDED", obj("b", version="version-7"))]
        store, _, task = fake.start()
        await asyncio.sleep(0.7 * RENEW_S)
        assert set(store.of(POD, LLAMA)) == {"a", "b"}
        fake.events = [("DELETED", obj("a", version="version-8"))]
        await asyncio.sleep(0.6 * RENEW_S)
        assert set(store.of(POD, LLAMA)) == {"b"}
        await asyncio.sleep(1.3 * RENEW_S)
        assert fake.since[:3] == ["version-1", "version-7", "version-8"]
        assert len(fake.lists) == 1
        task.cancel()

    run(main())


def test_watch_that_cannot_resume_lists_again() -> None:
    async def main() -> None:
        fake = FakeWatch([[obj("a")], [obj("b")]])
        fake.events = [("ADDED", obj("c")), ApiError(410, "too old")]
        store, _, task = fake.start()
        await asyncio.sleep(1)
        assert set(store.of(POD, LLAMA)) == {"b"}
        assert fake.since == ["version-1", "version-2"]
        task.cancel()

    run(main())


def test_watch_that_fails_is_tried_again_with_backoff() -> None:
    async def main() -> None:
        down: list[Any] = [ApiError(None, "no answer")] * 10
        fake = FakeWatch([*down, ValueError("nonsense"), [obj("a")]])
        fake.events = [ApiError(410, "too old"), ("ADDED", obj("b"))]
        store, listed, task = fake.start()
        await asyncio.sleep(5)
        assert not listed.is_set()
        await asyncio.sleep(120)
        assert set(store.of(POD, LLAMA)) == {"a", "b"}
        assert not task.done()
        waits = [b - a for a, b in zip(fake.lists, fake.lists[1:], strict=False)]
        assert waits[0] < 0.2
        assert all(0.5 * MAX_RETRY_S <= wait <= 1.5 * MAX_RETRY_S for wait in waits[7:11])
        task.cancel()

    run(main())


def test_kind_without_a_first_list_is_named_in_time() -> None:
    listed = {POD: asyncio.Event(), SERVICE: asyncio.Event()}
    listed[POD].set()

    async def wait() -> float:
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(RuntimeError, match="Could not list services within 60 s"):
            await until_listed(listed)
        return asyncio.get_running_loop().time() - began_s

    assert run(wait()) == pytest.approx(FIRST_LISTS_S)


def test_kinds_once_all_are_listed_are_waited_for_no_longer() -> None:
    listed = {POD: asyncio.Event()}

    async def wait() -> None:
        asyncio.get_running_loop().call_later(30, listed[POD].set)
        await until_listed(listed)

    run(wait())
