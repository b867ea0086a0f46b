"""The client sends these calls, and raises these errors for refusals."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from kubernetes.aio.client import ApiClient, Configuration

from macroserve.operator.k8s.client import Api, ApiError
from macroserve.operator.k8s.kinds import POD


@pytest.mark.parametrize(
    ("status", "is_passing"),
    [
        (None, True),
        (409, True),
        (429, True),
        (500, False),
        (502, True),
        (503, True),
        (504, True),
        (400, False),
        (403, False),
        (404, False),
        (422, False),
    ],
)
def test_error_of_each_status_says_whether_a_retry_may_help(
    status: int | None, is_passing: bool
) -> None:
    assert ApiError(status, "").is_passing is is_passing


def test_error_of_409_is_a_conflict_and_of_404_an_absence() -> None:
    assert ApiError(409, "").is_conflict and not ApiError(404, "").is_conflict
    assert ApiError(404, "").is_absence and not ApiError(409, "").is_absence


class FakeServer:
    """A server with answers from the test, which records requests."""

    def __init__(self, *answers: web.Response) -> None:
        self.asked: list[web.BaseRequest] = []
        self._answers = list(answers)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        await request.read()
        self.asked.append(request)
        return self._answers.pop(0)

    @asynccontextmanager
    async def api(self) -> AsyncIterator[Api]:
        async with RawTestServer(self.answer) as server:
            host = str(server.make_url("")).rstrip("/")
            async with ApiClient(Configuration(host)) as client:
                yield Api(client)


def refusal(code: int, reason: str) -> web.Response:
    status = {"kind": "Status", "code": code, "reason": reason, "message": f"refused: {reason}"}
    return web.json_response(status, status=code)


def events(*lines: dict[str, Any]) -> web.Response:
    return web.Response(text="".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("num_chars", [10, 1_500_000])
async def test_watch_yields_objects_of_any_size(num_chars: int) -> None:
    large = {"metadata": {"annotations": {"a": "x" * num_chars}}}
    told = [{"type": "MODIFIED", "object": large}, {"type": "DELETED", "object": {"b": 1}}]
    server = FakeServer(events(*told))
    async with server.api() as api:
        watch = api.watch(POD, {}, "1", 60)
        seen = [await anext(watch) for _ in told]
        with pytest.raises(ApiError, match="ended the watch"):
            await anext(watch)
    assert seen == [("MODIFIED", large), ("DELETED", {"b": 1})]


async def test_list_in_pages_returns_all_items_and_the_version() -> None:
    server = FakeServer(
        web.json_response({"metadata": {"continue": "x+/="}, "items": [{"a": 1}]}),
        web.json_response({"metadata": {"resourceVersion": "7"}, "items": [{"a": 2}]}),
    )
    async with server.api() as api:
        assert await api.list(POD, {"app": "a", "b": "c"}) == ("7", [{"a": 1}, {"a": 2}])
    first, second = server.asked
    assert first.path == "/api/v1/pods"
    assert first.query == {"labelSelector": "app=a,b=c", "limit": "500"}
    assert second.query["continue"] == "x+/="


async def test_apply_of_a_status_forces_conflicts_as_the_field_manager() -> None:
    server = FakeServer(web.json_response({}))
    async with server.api() as api:
        await api.apply_status("team", "llama", {"instances": 3})
    (asked,) = server.asked
    root = "/apis/macroserve.io/v1alpha1/namespaces/team"
    assert (asked.method, asked.path) == ("PATCH", f"{root}/macroinstances/llama/status")
    assert asked.query == {"fieldManager": "macroserve-operator", "force": "true"}
    assert asked.content_type == "application/apply-patch+yaml"
    assert await asked.json() == {
        "apiVersion": "macroserve.io/v1alpha1",
        "kind": "MacroInstance",
        "metadata": {"name": "llama", "namespace": "team"},
        "status": {"instances": 3},
    }


async def test_get_of_an_absent_object_returns_none() -> None:
    async with FakeServer(refusal(404, "NotFound")).api() as api:
        assert await api.get(POD, "team", "a") is None


async def test_refused_call_raises_the_servers_reason_and_message() -> None:
    async with FakeServer(refusal(403, "Forbidden")).api() as api:
        with pytest.raises(ApiError, match="refused: Forbidden") as raised:
            await api.create(POD, {"metadata": {"name": "a", "namespace": "team"}})
    assert (raised.value.status, raised.value.reason) == (403, "Forbidden")


async def test_answer_of_a_proxy_raises_its_status() -> None:
    async with FakeServer(web.Response(status=502, text="<html>")).api() as api:
        with pytest.raises(ApiError, match="Bad Gateway") as raised:
            await api.list(POD, {})
    assert raised.value.is_passing


async def test_unreachable_server_raises_without_a_status() -> None:
    async with ApiClient(Configuration("http://127.0.0.1:1")) as client:
        with pytest.raises(ApiError) as raised:
            await Api(client).get(POD, "team", "a")
    assert raised.value.status is None


async def test_watch_yields_events_until_the_server_ends_it() -> None:
    server = FakeServer(events({"type": "ADDED", "object": {"a": 1}}))
    async with server.api() as api:
        watch = api.watch(POD, {"app": "a"}, "7", 120, "team")
        assert await anext(watch) == ("ADDED", {"a": 1})
        with pytest.raises(ApiError, match="ended the watch"):
            await anext(watch)
    (asked,) = server.asked
    assert asked.path == "/api/v1/namespaces/team/pods"
    assert asked.query == {
        "labelSelector": "app=a",
        "resourceVersion": "7",
        "timeoutSeconds": "120",
        "watch": "true",
    }


@pytest.mark.parametrize(
    "answer",
    [
        refusal(410, "Expired"),
        events({"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "old"}}),
    ],
    ids=["as the response", "as an event"],
)
async def test_watch_from_an_expired_version_raises_gone(answer: web.Response) -> None:
    async with FakeServer(answer).api() as api:
        with pytest.raises(ApiError) as raised:
            await anext(api.watch(POD, {}, "7", 120))
    assert (raised.value.status, raised.value.reason) == (410, "Expired")
