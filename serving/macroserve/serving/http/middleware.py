"""Error bodies in OpenAI's shape, and middleware for ``Retry-After`` and ``Connection: close``."""

from collections.abc import Callable
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TYPES = {
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
}


def error_response(
    status: int, message: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(error_body(status, message), status_code=status, headers=headers)


def error_body(status: int, message: str) -> dict[str, Any]:
    """Return an error in OpenAI's shape."""
    kind = _TYPES.get(status, "BadRequestError" if status < 500 else "ServiceUnavailableError")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


class RetryAfter:
    """Middleware that adds ``Retry-After``, ``delay_s()`` seconds, to responses of 429 and 503."""

    def __init__(self, app: ASGIApp, delay_s: Callable[[], int]) -> None:
        self._app = app
        self._delay_s = delay_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in (429, 503):
                header = (b"retry-after", str(self._delay_s()).encode())
                message["headers"] = [*message.get("headers", []), header]
            await send(message)

        await self._app(scope, receive, send_with_header)


class CloseConnectionsMiddleware:
    """Middleware that closes connections while ``leaving`` is set: clients then reach another
    replica."""

    def __init__(self, app: ASGIApp) -> None:
        self.leaving = False
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_header(message: Message) -> None:
            if self.leaving and message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, send_with_header)
