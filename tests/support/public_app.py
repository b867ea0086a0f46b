"""A fake public application behind the ingress's layers, and calls to it."""

import asyncio
import json
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from macroserve.serving.ingress.api_keys import LiveApiKeys, environment_source
from macroserve.serving.ingress.body_limit import BodyLimit
from macroserve.serving.ingress.gate import Gate
from macroserve.serving.ingress.public_responses import PublicResponses
from macroserve.serving.ingress.request_check import Checked

KEY = "sk-one"
WITH_KEY = {"authorization": f"Bearer {KEY}"}


class FakeApp:
    """An application that records the bodies it gets, with an answer set by the test."""

    def __init__(self, status: int = 200, *chunks: bytes, kind: str = "application/json") -> None:
        self.bodies: list[bytes] = []
        self._status, self._chunks, self._kind = status, chunks or (b"{}",), kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.bodies.append((await receive()).get("body", b""))
        headers = [(b"x-from", b"app"), (b"content-type", self._kind.encode())]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        for chunk in self._chunks[:-1]:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": self._chunks[-1]})


RETRY_AFTER_S = 7


def unchecked(scope: Scope, body: bytes) -> Checked:
    return Checked(scope, body, None)


def guarded(app: Any, *, has_ids: bool = False, **limits: int) -> PublicResponses:
    keys = LiveApiKeys(environment_source(KEY))
    return shaped(Gate(BodyLimit(app, unchecked, **limits), keys), has_ids=has_ids)


def shaped(app: Any, *, has_ids: bool = False) -> PublicResponses:
    return PublicResponses(app, lambda: RETRY_AFTER_S, has_ids=has_ids)


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


def call(app: Any, path: str, **options: Any) -> Answer:
    return asyncio.run(ask(app, path, **options))
