"""The gate admits public routes, and others only with a valid key."""

import asyncio
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send
from support.public_app import KEY, WITH_KEY, FakeApp, call, guarded

from macroserve.serving.ingress.api_keys import ApiKeySource, LiveApiKeys
from macroserve.serving.ingress.gate import KEY_CLASS, Gate
from macroserve.serving.ingress.public_routes import PUBLIC_ROUTES, Access


def example(path: str) -> str:
    return path.replace("{id}", "resp_1")


@pytest.mark.parametrize("route", PUBLIC_ROUTES, ids=lambda route: route.path)
def test_route_that_is_not_open_needs_a_key(route) -> None:
    for method in route.methods:
        app = FakeApp()
        answer = call(guarded(app), example(route.path), method=method)
        if route.access is Access.OPEN:
            assert answer.status == 200 and app.bodies == [b""], "an open route reads no body"
        else:
            assert (answer.status, app.bodies, answer.num_received) == (401, [], 0)
        assert (
            call(guarded(app), example(route.path), method=method, headers=WITH_KEY).status == 200
        )


def test_open_routes_are_health_and_ready_only() -> None:
    opened = {route.path for route in PUBLIC_ROUTES if route.access is Access.OPEN}
    assert opened == {"/health", "/ready"}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "*",
        "/metrics",
        "/macroserve/metrics",
        "/admin/v1/report",
        "/docs",
        "/openapi.json",
        "/load",
        "/ping",
        "/invocations",
        "/inference/v1/generate",
        "/v1/completions/render",
        "/v1/realtime",
        "//v1/models",
        "/v1//models",
        "/v1/models/",
        "/v1/models/x",
        "/V1/models",
        "/v1/../v1/models",
        "/health/../v1/models",
        "/health/",
        "/health\n",
        "/v1/models\x00",
        "/v1/models;x",
        "/v1/responses/",
        "/v1/responses/a/b",
        "/v1/responses/..",
        "/v1/responses/a\nb",
        "/v1/responses/" + "a" * 129,
    ],
)
def test_path_that_is_no_public_route_never_reaches_the_application(path: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        app = FakeApp()
        preflight = {**WITH_KEY, "access-control-request-method": "POST"}
        answer = call(guarded(app), path, method=method, headers=preflight)
        assert (answer.status, app.bodies) == (404, [])
        assert answer.error["code"] == 404


@pytest.mark.parametrize(
    ("path", "says"),
    [("/v1/embeddings", "only generation"), ("/v1/score", "only generation"), ("/x", "no such")],
)
def test_path_of_another_kind_of_model_is_refused_in_a_sentence(path: str, says: str) -> None:
    answer = call(guarded(FakeApp()), path, headers=WITH_KEY)
    assert answer.status == answer.error["code"] == 404
    assert says in answer.error["message"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "X"])
def test_other_methods_never_reach_the_application(method: str) -> None:
    app = FakeApp()
    answer = call(guarded(app), "/v1/completions", method=method, headers=WITH_KEY)
    assert (answer.status, app.bodies, answer.headers["allow"]) == (405, [], "POST")
    assert answer.error["code"] == 405


def test_websocket_is_closed() -> None:
    sent: list[Message] = []

    async def run() -> None:
        async def receive() -> Message:
            return {"type": "websocket.connect"}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "websocket", "path": "/health", "headers": []}
        await Gate(FakeApp(), None)(scope, receive, send)

    asyncio.run(run())
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ({"x-api-key": KEY}, "/v1/messages", 200),
        ({"x-api-key": KEY}, "/v1/messages/count_tokens", 200),
        ({"x-api-key": "other"}, "/v1/messages", 401),
        ({"x-api-key": KEY}, "/v1/completions", 401),
        (WITH_KEY, "/v1/messages", 200),
        ({"authorization": KEY}, "/v1/completions", 401),
        ({"authorization": "Basic " + KEY}, "/v1/completions", 401),
        ({"authorization": "Bearer of"}, "/v1/completions", 401),
    ],
)
def test_keys_come_as_the_clients_of_either_api_send_them(headers, path: str, status: int) -> None:
    assert call(guarded(FakeApp()), path, headers=headers).status == status


def test_gate_without_keys_lets_everybody_call_public_routes_only() -> None:
    app = Gate(FakeApp(), None)
    assert call(app, "/generative_scoring").status == 200
    assert call(app, "/metrics", method="GET").status == 404


def test_refused_client_that_waits_to_send_its_body_is_let_go() -> None:
    answer = call(guarded(FakeApp()), "/v1/completions", headers={"expect": "100-continue"})
    assert (answer.status, answer.headers["connection"]) == (401, "close")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("value", "status"),
    [("abc-123", 200), ("a" * 128, 200), ("a" * 129, 400), ("a b", 400), ("\x1b[31m", 400)],
)
def test_request_id_is_printable_and_short(value: str, status: int) -> None:
    headers = {**WITH_KEY, "x-request-id": value}
    answer = call(guarded(FakeApp()), "/v1/completions", headers=headers)
    assert answer.status == status and value.encode() not in answer.body


@pytest.mark.parametrize(
    ("key", "slo_class"), [("sk-nightly", "batch"), ("sk-any", None), ("sk-none", "refused")]
)
def test_application_learns_the_class_of_the_key(
    tmp_path: Path, key: str, slo_class: str | None
) -> None:
    (tmp_path / "batch").write_text("sk-nightly")
    (tmp_path / "others").write_text("sk-any")
    found: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(scope[KEY_CLASS])
        await FakeApp()(scope, receive, send)

    gate = Gate(app, LiveApiKeys(ApiKeySource(tmp_path), ["batch"]))
    answer = call(gate, "/v1/completions", headers={"authorization": f"Bearer {key}"})
    assert (answer.status, found) == ((401, []) if slo_class == "refused" else (200, [slo_class]))
