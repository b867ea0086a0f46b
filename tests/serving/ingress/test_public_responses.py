"""Errors have the shape of the client's API, with the manifest's field names; responses have their
headers."""

import asyncio
import json
import re

import pytest
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from support.public_app import RETRY_AFTER_S, WITH_KEY, Answer, FakeApp, call, guarded, shaped


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
    answer = call(guarded(FakeApp(status, body)), "/v1/completions", headers=WITH_KEY)
    assert answer.status == answer.error["code"] == status
    assert answer.error["message"] == message and answer.error["type"]
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.headers["x-from"] == "app"


def test_errors_in_openai_shape_stay_as_they_are() -> None:
    body = {"error": {"message": "m", "type": "t", "param": "p", "code": 400, "more": 1}}
    answer = call(
        guarded(FakeApp(400, json.dumps(body).encode())), "/v1/completions", headers=WITH_KEY
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
    answer = call(guarded(FakeApp(status, body)), "/v1/messages", headers=WITH_KEY)
    assert json.loads(answer.body) == {"type": "error", "error": {"type": kind, "message": "m"}}
    unknown = call(guarded(FakeApp()), "/v1/messages")
    assert json.loads(unknown.body)["error"]["type"] == "authentication_error"


def sent_by(app: ASGIApp) -> list[Message]:
    """Return what the client gets of an application that fails."""
    sent: list[Message] = []

    async def run() -> None:
        async def send(message: Message) -> None:
            sent.append(message)

        await shaped(app)({"type": "http", "path": "/v1/completions"}, send, send)

    with pytest.raises(RuntimeError):
        asyncio.run(run())
    return sent


def test_application_that_fails_gets_500_in_shape_and_is_logged() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("secret")

    answer = Answer(sent_by(failing), 0)
    assert answer.error["code"] == 500 and b"secret" not in answer.body


AUTO = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
AUTO_SAID = '"auto" tool choice requires spec.api.toolCallParser to be set'


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_errors_name_fields_of_the_manifest_and_not_flags(path: str) -> None:
    app = FakeApp(400, json.dumps({"error": {"message": AUTO, "code": 400}}).encode())
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
    answer = call(guarded(FakeApp(200, body)), "/v1/chat/completions", headers=WITH_KEY)
    head, _, data = answer.body.decode().rpartition("data: ")
    assert head == event.partition("data: ")[0] and data.endswith("\n\n")
    assert json.loads(data)["error"]["message"] == AUTO_SAID


def test_text_of_a_model_is_not_changed() -> None:
    body = b'data: {"choices":[{"delta":{"content":"pass --tool-call-parser, \\"error\\":"}}]}\n\n'
    answer = call(guarded(FakeApp(200, body)), "/v1/chat/completions", headers=WITH_KEY)
    assert answer.body == body


STREAM = "text/event-stream; charset=utf-8"
LATE = b'data: {"error":{"message":"late; retry later","type":"t","param":null,"code":429}}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def test_stream_that_begins_with_an_error_becomes_a_response_with_its_status() -> None:
    app = FakeApp(200, LATE, DONE, kind=STREAM)
    answer = call(guarded(app), "/v1/chat/completions", headers=WITH_KEY)
    assert answer.status == 429 and answer.headers["content-type"] == "application/json"
    assert answer.headers["x-from"] == "app"
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.error["message"] == "late; retry later"


@pytest.mark.parametrize(
    "chunks",
    [
        (TOKEN, LATE, DONE),
        (b": keep-alive\n\n", LATE, DONE),
        (b'data: {"error":{"message":"m","type":"t"}}\n\n', DONE),
        (b'data: {"error":{"message":"m","type":"t","code":200}}\n\n', DONE),
        (b'data: {"error":{"code":429}}\n\n', DONE),
        (TOKEN, DONE),
    ],
    ids=["after a token", "after a comment", "no status", "no error", "no message", "no error"],
)
def test_other_streams_stay_streams(chunks: tuple[bytes, ...]) -> None:
    answer = call(guarded(FakeApp(200, *chunks, kind=STREAM)), "/v1/completions", headers=WITH_KEY)
    assert answer.status == 200 and answer.headers["content-type"] == STREAM
    events = answer.body.replace(b": ", b":").replace(b", ", b",")
    assert events == b"".join(chunks).replace(b": ", b":")


START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", STREAM.encode())],
}


def test_stream_starts_with_its_first_event_at_once() -> None:
    async def failing_later(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": TOKEN, "more_body": True})
        raise RuntimeError

    assert [message["type"] for message in sent_by(failing_later)] == [
        "http.response.start",
        "http.response.body",
    ]


def test_stream_that_fails_before_its_first_event_gets_500() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        raise RuntimeError

    assert Answer(sent_by(failing), 0).status == 500


# -- headers


@pytest.mark.parametrize("status", [200, 400, 429, 500, 503])
def test_retry_after_is_sent_only_to_clients_that_may_retry(status: int) -> None:
    answer = call(shaped(FakeApp(status)), "/v1/completions")
    expected = str(RETRY_AFTER_S) if status in (429, 503) else None
    assert answer.headers.get("retry-after") == expected


@pytest.mark.parametrize("leaving", [True, False])
def test_connections_are_closed_only_while_the_replica_leaves(leaving: bool) -> None:
    app = guarded(FakeApp())
    app.leaving = leaving
    for headers in (WITH_KEY, None):
        answer = call(app, "/v1/completions", headers=headers)
        assert answer.headers.get("connection") == ("close" if leaving else None)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/completions", {**WITH_KEY, "x-request-id": "abc-1"}, 200),
        ("/v1/completions", {"x-request-id": "abc-1"}, 401),
        ("/nowhere", {**WITH_KEY, "x-request-id": "abc-1"}, 404),
    ],
)
def test_response_and_refusal_have_the_id_of_the_request(
    path: str, headers: dict[str, str], status: int
) -> None:
    answer = call(guarded(FakeApp(), has_ids=True), path, headers=headers)
    assert (answer.status, answer.headers["x-request-id"]) == (status, "abc-1")


@pytest.mark.parametrize("headers", [WITH_KEY, {}, {**WITH_KEY, "x-request-id": "\x1b[31m"}])
def test_request_without_a_valid_id_gets_a_new_one_each_time(headers: dict[str, str]) -> None:
    app = guarded(FakeApp(), has_ids=True)
    answers = [call(app, "/v1/completions", headers=headers) for _ in range(2)]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 2 and all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)


def test_application_gets_the_id_that_the_response_has() -> None:
    seen: list[str | None] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(Headers(scope=scope).get("x-request-id"))
        await FakeApp()(scope, receive, send)

    answer = call(guarded(app, has_ids=True), "/v1/completions", headers=WITH_KEY)
    assert seen == [answer.headers["x-request-id"]]


def test_response_has_no_id_unless_ids_are_switched_on() -> None:
    headers = {**WITH_KEY, "x-request-id": "abc-1"}
    answer = call(guarded(FakeApp()), "/v1/completions", headers=headers)
    assert "x-request-id" not in answer.headers
