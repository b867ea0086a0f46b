"""Access control of the public endpoint, by the request's head alone."""

import re

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from macroserve.serving.http.errors import error_response
from macroserve.serving.ingress.api_keys import LiveApiKeys
from macroserve.serving.ingress.public_routes import (
    UNSERVED,
    Access,
    PublicRoute,
    find_route,
    is_anthropic,
)

KEY_CLASS = "macroserve.key_class"
"""Key of the ASGI scope with the SLO class of the request's API key."""

REQUEST_ID = re.compile(r"[!-~]{1,128}")
"""Allowed request ids: they appear in logs, other processes and the response."""


class Gate:
    """Middleware that answers 404 for an unknown path, 405 for another method, and 401 without a
    valid key, before it reads any of the body. ``keys`` is None for open access."""

    def __init__(self, app: ASGIApp, keys: LiveApiKeys | None) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # No public route is a WebSocket; closing before accepting makes a 403.
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        route = find_route(scope["path"])
        refusal = self._refusal(scope, route, headers)
        if refusal is not None:
            if "expect" in headers:
                # The client now sends no body, so the connection cannot be reused.
                refusal.headers["connection"] = "close"
            await refusal(scope, receive, send)
        elif _is_open(route):
            await self._app(scope, _no_body(), send)
        else:
            await self._app(scope, receive, send)

    def _refusal(
        self, scope: Scope, route: PublicRoute | None, headers: Headers
    ) -> Response | None:
        """Return the refusal, or None after storing the key's class in the scope."""
        if route is None:
            return error_response(404, UNSERVED.get(scope["path"], "there is no such path"))
        if scope["method"] not in route.methods:
            allowed = ", ".join(route.methods)
            return error_response(405, f"{route.path} allows only {allowed}", {"allow": allowed})
        if route.access is Access.OPEN:
            return None
        if self._keys:
            known = self._keys.find(headers, is_anthropic(route.path))
            if known is None:
                message = "the API key is missing or unknown"
                return error_response(401, message, {"www-authenticate": "Bearer"})
            scope[KEY_CLASS] = known.slo_class
        if not all(map(REQUEST_ID.fullmatch, headers.getlist("x-request-id"))):
            return error_response(
                400, "X-Request-Id must be 1 to 128 printable ASCII characters without spaces"
            )
        return None


def _is_open(route: PublicRoute | None) -> bool:
    return route is not None and route.access is Access.OPEN


def _no_body() -> Receive:
    """Return an empty body, as open routes read none."""
    messages: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def first_empty() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return first_empty
