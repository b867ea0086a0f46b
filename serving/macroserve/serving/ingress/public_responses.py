"""Responses of the public endpoint: their headers, and errors in OpenAI's or Anthropic's shape with
the manifest's field names."""

import json
import re
import uuid
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from macroserve.api.option_names import in_manifest_words
from macroserve.serving.http.errors import error_body
from macroserve.serving.ingress.gate import REQUEST_ID
from macroserve.serving.ingress.public_routes import is_anthropic

MAX_ERROR_BYTES = 64 << 10
_REQUEST_ID = "x-request-id"
_ERROR_EVENT = re.compile(
    rb'(?P<name>(event: error\n)?)data: (?P<data>\{("type":"error",)?"error":.*\})\n\n'
)
_ERROR_STATUSES = range(400, 600)
_OWN_HEADERS = (b"content-length", b"content-type", b"transfer-encoding")
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class PublicResponses:
    """Middleware that rewrites responses of 400 and above (a framework's ``{"detail": ...}``, plain
    text) to OpenAI's shape, on ``/v1/messages`` to Anthropic's. Flags of vLLM in a message become
    fields of the manifest, also in an event that ends a stream.

    A stream that begins with an error becomes a response with the error's status, which clients
    retry where that helps: the start of a stream is sent with its first event.

    429 and 503 have ``Retry-After``. While ``leaving`` is set, connections are closed, so that
    clients reach another replica.

    retry_after_s: returns the value of ``Retry-After``, seconds.
    has_ids: whether each response has ``X-Request-Id``: that of the request, or a new one, which
    the application sees in the request.
    """

    def __init__(
        self, app: ASGIApp, retry_after_s: Callable[[], int], *, has_ids: bool = False
    ) -> None:
        self.leaving = False
        self._app = app
        self._retry_after_s = retry_after_s
        self._has_ids = has_ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fixed: list[tuple[bytes, bytes]] = []
        if self._has_ids and scope["type"] == "http":
            named = Headers(scope=scope).get(_REQUEST_ID)
            is_valid = named is not None and REQUEST_ID.fullmatch(named)
            request_id = named if named and is_valid else uuid.uuid4().hex
            fixed.append((_REQUEST_ID.encode(), request_id.encode()))
            if named is None:
                scope = {**scope, "headers": [*scope["headers"], *fixed]}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [*fixed, *self._headers(message["status"])]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        await self._shape(scope, receive, send_with_headers)

    def _headers(self, status: int) -> Iterator[tuple[bytes, bytes]]:
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            yield b"retry-after", str(self._retry_after_s()).encode()
        if self.leaving:
            yield b"connection", b"close"

    async def _shape(self, scope: Scope, receive: Receive, send: Send) -> None:
        shaped = _Shaped(scope, receive, send)
        try:
            await self._app(scope, receive, shaped.send)
        except Exception:
            if not shaped.has_begun:
                await shaped.error({"status": 500}, b"internal error")
            raise


class _Shaped:
    """A response on its way to the client."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self.has_begun = False
        """Whether anything of it has been sent, or its error is being received."""
        self._held: Message | None = None
        """Start of a stream without an event yet."""
        self._failed: Message | None = None
        """Start of an error whose body is being received."""
        self._body = bytearray()
        self._is_replaced = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if message["status"] >= HTTPStatus.BAD_REQUEST:
                self._failed, self.has_begun = message, True
            elif _is_stream(message):
                self._held = message
            else:
                await self._pass(message)
        elif self._failed:
            self._body.extend(message.get("body", b""))
            del self._body[MAX_ERROR_BYTES:]
            if not message.get("more_body", False):
                await self.error(self._failed, bytes(self._body))
        elif self._held and (found := _first_error(message)):
            self._is_replaced = True
            status, body = found
            await self.error({**self._held, "status": status}, body)
        elif not self._is_replaced:
            if self._held:
                await self._pass(self._held)
            await self._pass(_event_in_manifest_words(message))

    async def _pass(self, message: Message) -> None:
        self.has_begun, self._held = True, None
        await self._send(message)

    async def error(self, start: Message, body: bytes) -> None:
        """Send an error with the status and headers of ``start``."""
        self.has_begun, self._held = True, None
        response = _shaped(self._scope["path"], start, body)
        await response(self._scope, self._receive, self._send)


def _is_stream(start: Message) -> bool:
    headers = dict(start.get("headers", ()))
    return headers.get(b"content-type", b"").startswith(b"text/event-stream")


def _first_error(message: Message) -> tuple[int, bytes] | None:
    """Return the status and the body of an error event that has a status."""
    if not (found := _ERROR_EVENT.fullmatch(message.get("body", b""))):
        return None
    content = _decoded(found["data"])
    status: Any = content["error"].get("code") if _is_openai(content) else None
    return (status, found["data"]) if status in _ERROR_STATUSES else None


def _shaped(path: str, start: Message, body: bytes) -> JSONResponse:
    status = start["status"]
    openai = _decoded(body)
    if not _is_openai(openai):
        openai = error_body(status, _message(openai, body, status))
    openai["error"]["message"] = in_manifest_words(openai["error"]["message"])
    content = openai
    if is_anthropic(path):
        error = {
            "type": _ANTHROPIC_TYPES.get(
                status, "invalid_request_error" if status < 500 else "api_error"
            ),
            "message": openai["error"]["message"],
        }
        content = {"type": "error", "error": error}
    response = JSONResponse(content, status_code=status)
    kept = [(k, v) for k, v in start.get("headers", []) if k.lower() not in _OWN_HEADERS]
    response.raw_headers.extend(kept)
    return response


def _event_in_manifest_words(message: Message) -> Message:
    """Rewrite the error event of a stream, if it is one; vLLM sends each event as one message."""
    if not (found := _ERROR_EVENT.fullmatch(message.get("body", b""))):
        return message
    content = _decoded(found["data"])
    if not _is_openai(content):
        return message
    content["error"]["message"] = in_manifest_words(content["error"]["message"])
    event = found["name"] + b"data: " + json.dumps(content).encode() + b"\n\n"
    return {**message, "body": event}


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _is_openai(content: Any) -> bool:
    """Return whether an error has OpenAI's shape; Anthropic's also counts and is restored later."""
    return (
        isinstance(content, dict)
        and isinstance(content.get("error"), dict)
        and isinstance(content["error"].get("message"), str)
    )


def _message(content: Any, body: bytes, status: int) -> str:
    detail = content.get("detail") if isinstance(content, dict) else None
    if isinstance(detail, str) and detail:
        return detail
    return body.decode("utf-8", "replace").strip()[:500] or f"HTTP status {status}"
