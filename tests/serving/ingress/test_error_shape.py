"""Errors have the shape of the client's API, with the manifest's field names."""

import asyncio
import json

import pytest
from starlette.types import Message, Receive, Scope, Send
from support.public_app import WITH_KEY, Answer, FakeApp, call, guarded

from macroserve.serving.ingress.error_shape import ErrorShape


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


def test_application_that_fails_gets_500_in_shape_and_is_logged() -> None:
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
