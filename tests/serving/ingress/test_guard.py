"""What stands before the public application: the gate, the body limit, the shape of errors."""

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from macroserve.serving.http.middleware import RetryAfter
from macroserve.serving.ingress.api_keys import LiveApiKeys, environment_source
from macroserve.serving.ingress.body_limit import BodyLimit
from macroserve.serving.ingress.cors import with_cors
from macroserve.serving.ingress.error_shape import ErrorShape
from macroserve.serving.ingress.gate import Gate
from macroserve.serving.ingress.public_routes import PUBLIC_ROUTES, Access

KEY = "sk-one"
WITH_KEY = {"authorization": f"Bearer {KEY}"}


class Played:
    """Notes what reaches it, and answers what it is told."""

    def __init__(self, status: int = 200, body: bytes = b"{}") -> None:
        self.bodies: list[bytes] = []
        self._status, self._body = status, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.bodies.append((await receive()).get("body", b""))
        headers = [(b"x-from", b"app")]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": self._body})


def guarded(app: Any, **limits: int) -> Any:
    return ErrorShape(Gate(BodyLimit(app, **limits), LiveApiKeys(environment_source(KEY))))


class Answer:
    def __init__(self, messages: list[Message], num_received: int) -> None:
        self.status = messages[0]["status"]
        self.headers = {k.decode(): v.decode() for k, v in messages[0]["headers"]}
        self.body = b"".join(m.get("body", b"") for m in messages[1:])
        self.num_received = num_received

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


async def ask(
    app: Any,
    path: str,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    parts: tuple[bytes, ...] = (b"{}",),
) -> Answer:
    sent: list[Message] = []
    waiting = list(parts)
    num_received = 0

    async def receive() -> Message:
        nonlocal num_received
        num_received += 1
        if not waiting:
            return {"type": "http.disconnect"}
        body = waiting.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    async def send(message: Message) -> None:
        sent.append(message)

    raw = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw, "query_string": b""}
    await app(scope, receive, send)
    return Answer(sent, num_received)


ORIGIN = "https://app.example"
ORIGINS = {
    "allowed_origins": [ORIGIN],
    "allowed_methods": ["*"],
    "allowed_headers": ["*"],
    "allow_credentials": False,
}


def call(app: Any, path: str, **options: Any) -> Answer:
    return asyncio.run(ask(app, path, **options))


def example(path: str) -> str:
    return path.replace("{id}", "resp_1")


@pytest.mark.parametrize("route", PUBLIC_ROUTES, ids=lambda route: route.path)
def test_every_route_needs_a_key_unless_it_is_open(route) -> None:
    for method in route.methods:
        app = Played()
        answer = call(guarded(app), example(route.path), method=method)
        if route.access is Access.OPEN:
            assert answer.status == 200 and app.bodies == [b""], "an open route reads no body"
        else:
            assert (answer.status, app.bodies, answer.num_received) == (401, [], 0)
        assert (
            call(guarded(app), example(route.path), method=method, headers=WITH_KEY).status == 200
        )


def test_only_health_and_ready_are_open() -> None:
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
        app = Played()
        preflight = {**WITH_KEY, "access-control-request-method": "POST"}
        answer = call(guarded(app), path, method=method, headers=preflight)
        assert (answer.status, app.bodies) == (404, [])
        assert answer.error["code"] == 404


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "X"])
def test_other_methods_never_reach_the_application(method: str) -> None:
    app = Played()
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
        await Gate(Played(), None)(scope, receive, send)

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
    assert call(guarded(Played()), path, headers=headers).status == status


def test_without_keys_everyone_calls_what_is_public_and_nothing_else() -> None:
    app = Gate(Played(), None)
    assert call(app, "/generative_scoring").status == 200
    assert call(app, "/metrics", method="GET").status == 404


def test_refused_client_that_waits_to_send_its_body_is_let_go() -> None:
    answer = call(guarded(Played()), "/v1/completions", headers={"expect": "100-continue"})
    assert (answer.status, answer.headers["connection"]) == (401, "close")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("status", "retry_after"), [(200, None), (400, None), (429, "7"), (500, None), (503, "7")]
)
def test_only_a_client_that_may_try_again_is_told_when(status: int, retry_after) -> None:
    answer = call(RetryAfter(Played(status), lambda: 7), "/v1/completions", headers=WITH_KEY)
    assert answer.headers.get("retry-after") == retry_after


@pytest.mark.parametrize(
    ("value", "status"),
    [("abc-123", 200), ("a" * 128, 200), ("a" * 129, 400), ("a b", 400), ("\x1b[31m", 400)],
)
def test_request_id_is_printable_and_short(value: str, status: int) -> None:
    headers = {**WITH_KEY, "x-request-id": value}
    answer = call(guarded(Played()), "/v1/completions", headers=headers)
    assert answer.status == status and value.encode() not in answer.body


# -- errors


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (404, b'{"detail":"Not Found"}', "Not Found"),
        (400, b"Bad Request", "Bad Request"),
        (500, b"", "HTTP status 500"),
        (422, b'{"detail":[{"loc":[]}]}', '{"detail":[{"loc":[]}]}'),
        (400, b"[" * 100_000, "[" * 500),
    ],
)
def test_errors_of_others_take_openai_shape(status: int, body: bytes, message: str) -> None:
    answer = call(guarded(Played(status, body)), "/v1/completions", headers=WITH_KEY)
    assert answer.status == answer.error["code"] == status
    assert answer.error["message"] == message and answer.error["type"]
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.headers["x-from"] == "app"


def test_errors_in_openai_shape_stay_as_they_are() -> None:
    body = {"error": {"message": "m", "type": "t", "param": "p", "code": 400, "more": 1}}
    answer = call(
        guarded(Played(400, json.dumps(body).encode())), "/v1/completions", headers=WITH_KEY
    )
    assert json.loads(answer.body) == body


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (429, "rate_limit_error"),
        (418, "invalid_request_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_errors_on_messages_take_anthropic_shape(status: int, kind: str) -> None:
    body = json.dumps({"error": {"message": "m", "type": "t", "code": status}}).encode()
    answer = call(guarded(Played(status, body)), "/v1/messages", headers=WITH_KEY)
    assert json.loads(answer.body) == {"type": "error", "error": {"type": kind, "message": "m"}}
    unknown = call(guarded(Played()), "/v1/messages")
    assert json.loads(unknown.body)["error"]["type"] == "authentication_error"


def test_application_that_fails_gets_500_in_shape_and_is_told_of() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("secret")

    sent: list[Message] = []

    async def run() -> None:
        async def send(message: Message) -> None:
            sent.append(message)

        await ErrorShape(failing)({"type": "http", "path": "/v1/completions"}, send, send)

    with pytest.raises(RuntimeError):
        asyncio.run(run())
    assert Answer(sent, 0).error["code"] == 500 and b"secret" not in Answer(sent, 0).body


# -- bodies


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
def test_body_above_the_limit_gets_413_whatever_the_method(method: str) -> None:
    app = Played()
    answer = call(BodyLimit(app, 10), "/", method=method, parts=(b"a" * 6, b"a" * 6))
    assert (answer.status, app.bodies) == (413, [])
    length = {"content-length": "11"}
    answer = call(BodyLimit(app, 10), "/", method=method, headers=length)
    assert (answer.status, answer.num_received) == (413, 0)


def test_bodies_of_all_requests_are_bounded_until_their_responses_begin() -> None:
    begin, go_on = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["body"] == b"aaaa":
            await begin.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/stream":
            await go_on.wait()
        await send({"type": "http.response.body"})

    limit = BodyLimit(app, 10, 10)

    async def run() -> list[int]:
        held = [asyncio.create_task(ask(limit, "/stream", parts=(b"aaaa",))) for _ in range(2)]
        await asyncio.sleep(0)
        refused = await ask(limit, "/", parts=(b"bbb",))
        fits = await ask(limit, "/", parts=(b"b",))
        begin.set()
        await asyncio.sleep(0)
        streaming = await ask(limit, "/", parts=(b"b" * 10,))
        go_on.set()
        await asyncio.gather(*held)
        return [refused.status, fits.status, streaming.status]

    assert asyncio.run(run()) == [503, 200, 200]


def test_body_that_is_refused_or_left_gives_its_bytes_back() -> None:
    limit = BodyLimit(Played(), 10, 20)

    async def run() -> list[int]:
        too_large, fits = (b"a" * 9, b"a" * 9), (b"a" * 9, b"")
        return [(await ask(limit, "/", parts=p)).status for p in [too_large] * 3 + [fits] * 3]

    assert asyncio.run(run()) == [413] * 3 + [200] * 3


AUTO = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
AUTO_SAID = '"auto" tool choice requires spec.api.toolCallParser to be set'


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_errors_name_fields_of_the_manifest_and_not_flags(path: str) -> None:
    app = Played(400, json.dumps({"error": {"message": AUTO, "code": 400}}).encode())
    assert call(guarded(app), path, headers=WITH_KEY).error["message"] == AUTO_SAID


@pytest.mark.parametrize(
    "event",
    [
        'data: {"error":{"message":%s,"type":"BadRequestError","code":400}}\n\n',
        'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":%s}}\n\n',
    ],
)
def test_errors_that_end_a_stream_name_fields_of_the_manifest(event: str) -> None:
    body = (event % json.dumps(AUTO)).encode()
    answer = call(guarded(Played(200, body)), "/v1/chat/completions", headers=WITH_KEY)
    head, _, data = answer.body.decode().rpartition("data: ")
    assert head == event.partition("data: ")[0] and data.endswith("\n\n")
    assert json.loads(data)["error"]["message"] == AUTO_SAID


def test_what_a_model_says_is_not_changed() -> None:
    body = b'data: {"choices":[{"delta":{"content":"pass --tool-call-parser, \\"error\\":"}}]}\n\n'
    answer = call(guarded(Played(200, body)), "/v1/chat/completions", headers=WITH_KEY)
    assert answer.body == body


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/v1/completions", "POST", WITH_KEY, 200),
        ("/v1/completions", "POST", {}, 401),
        ("/v1/messages", "POST", {}, 401),
        ("/v1/completions", "DELETE", {}, 405),
        ("/nothing", "GET", {}, 404),
        ("/v1/completions", "POST", {**WITH_KEY, "content-length": "999999999"}, 413),
    ],
)
def test_a_page_of_an_allowed_origin_can_read_every_answer(
    path: str, method: str, headers: dict[str, str], status: int
) -> None:
    app = with_cors(guarded(Played()), ORIGINS)
    answer = call(app, path, method=method, headers={**headers, "origin": ORIGIN})
    assert answer.status == status
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    other = call(app, path, method=method, headers={**headers, "origin": "https://other.example"})
    assert other.status == status
    assert "access-control-allow-origin" not in other.headers


PREFLIGHT = {"origin": ORIGIN, "access-control-request-method": "POST"}


def test_a_preflight_needs_no_key_and_calls_nothing() -> None:
    app = Played()
    asked = {**PREFLIGHT, "access-control-request-headers": "authorization"}
    answer = call(
        with_cors(guarded(app), ORIGINS), "/v1/chat/completions", method="OPTIONS", headers=asked
    )
    assert (answer.status, app.bodies, answer.num_received) == (200, [], 0)
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["access-control-allow-headers"] == "authorization"


def test_without_origins_a_preflight_is_refused() -> None:
    app = Played()
    answer = call(
        with_cors(guarded(app), {}), "/v1/completions", method="OPTIONS", headers=PREFLIGHT
    )
    assert (answer.status, app.bodies) == (405, [])
    assert "access-control-allow-origin" not in answer.headers
