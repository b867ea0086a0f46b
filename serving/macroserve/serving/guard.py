"""What every HTTP request passes before the application sees it: size, time, API key."""

import asyncio
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from macroserve.serving.auth import TokenCheck

MAX_BODY_BYTES = 8 << 20
BODY_TIMEOUT_S = 30.0
GUARDED_PREFIXES = ("/v1", "/tokenize", "/detokenize")

_TYPES = {401: "AuthenticationError", 408: "RequestTimeoutError", 413: "RequestTooLargeError"}


def error_response(status: int, message: str, headers: dict[str, str] | None = None):
    """OpenAI's error shape."""
    kind = _TYPES.get(status, "BadRequestError" if status < 500 else "ServiceUnavailableError")
    error = {"message": message, "type": kind, "param": None, "code": status}
    return JSONResponse({"error": error}, status_code=status, headers=headers)


class ApiKeys:
    """401 unless the request carries one of ``keys``; without keys everyone may call."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        keys = tuple(keys)
        self._check = TokenCheck(keys) if keys else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = scope["type"] == "http" and scope["path"].startswith(GUARDED_PREFIXES)
        if self._check and guarded and not self._check.allows(Headers(scope=scope)):
            response = error_response(401, "the API key is missing or not known")
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


class RetryAfter:
    """Tells a client that met 429 or 503 when to come back."""

    def __init__(self, app: ASGIApp, seconds: int = 1) -> None:
        self._app = app
        self._header = (b"retry-after", str(seconds).encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in (429, 503):
                message["headers"] = [*message.get("headers", []), self._header]
            await send(message)

        await self._app(scope, receive, send_with_header)


class Farewell:
    """Once ``leaving``, asks clients to connect anew: they then come to another replica."""

    def __init__(self, app: ASGIApp) -> None:
        self.leaving = False
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_header(message: Message) -> None:
            if self.leaving and message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, send_with_header)


class BodyLimit:
    """Reads the whole body first, within bounds of size (413) and time (408).

    Handlers get it from memory; a body that never ends holds a connection, not a handler.
    """

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await self._read(scope, receive)
        except TimeoutError:
            await error_response(408, "the body did not arrive in time")(scope, receive, send)
            return
        if body is None:
            message = f"the body is larger than {self._max_bytes} bytes"
            await error_response(413, message)(scope, receive, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body, or None when it is too large; a client that left counts as an empty body."""
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length) > self._max_bytes:
            return None
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b""
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_bytes:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)
