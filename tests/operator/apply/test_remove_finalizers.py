"""The command removes the operator's finalizer from all MacroInstances before an uninstall."""

import asyncio
from typing import Any, cast

import pytest
from support.fake_api_server import FakeApiServer

from macroserve.operator.apply.remove_finalizers import release
from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import Api, ApiError
from macroserve.operator.k8s.kinds import MACROINSTANCE


def put(api: FakeApiServer, name: str, finalizers: list[str]) -> None:
    metadata = {"name": name, "namespace": "team", "finalizers": finalizers}
    api.put(MACROINSTANCE, {"metadata": metadata})


def finalizers(api: FakeApiServer) -> dict[str, Any]:
    return {o["metadata"]["name"]: o["metadata"]["finalizers"] for o in api.all(MACROINSTANCE)}


def test_release_removes_the_operators_finalizer_alone() -> None:
    api = FakeApiServer()
    put(api, "a", [names.FINALIZER])
    put(api, "b", ["theirs", names.FINALIZER])
    put(api, "c", ["theirs"])
    asyncio.run(release(cast(Api, api)))
    assert finalizers(api) == {"a": [], "b": ["theirs"], "c": ["theirs"]}


def test_release_of_one_namespace_leaves_the_others() -> None:
    api = FakeApiServer()
    put(api, "a", [names.FINALIZER])
    asyncio.run(release(cast(Api, api), ("other",)))
    assert finalizers(api) == {"a": [names.FINALIZER]}
    asyncio.run(release(cast(Api, api), ("other", "team")))
    assert finalizers(api) == {"a": []}


def test_release_after_a_conflict_tries_again() -> None:
    api = FakeApiServer()
    put(api, "a", [names.FINALIZER])
    left = [3]

    def refuse(verb: str) -> None:
        if verb == "merge" and left[0]:
            left[0] -= 1
            raise ApiError(409, "the object has been modified")

    api.before_call = refuse
    asyncio.run(release(cast(Api, api)))
    assert finalizers(api) == {"a": []}


def test_release_after_a_refusal_raises() -> None:
    api = FakeApiServer()
    put(api, "a", [names.FINALIZER])

    def refuse(verb: str) -> None:
        if verb == "merge":
            raise ApiError(403, "forbidden")

    api.before_call = refuse
    with pytest.raises(ApiError, match="forbidden"):
        asyncio.run(release(cast(Api, api)))
