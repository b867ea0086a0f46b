"""Checks that calls come from other components, for ASGI and aiohttp applications."""

from collections.abc import Awaitable, Callable, Collection

from aiohttp import web
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from macroserve.api.access_token import Audience
from macroserve.serving.security.calls import Admission, admission
from macroserve.serving.security.key_source import LiveKeys

Audiences = Callable[[str], Collection[Audience] | None]
"""Function that returns the audiences whose tokens open a path; None for an open path."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REFUSAL = "not authorized"
_ADMISSION = web.RequestKey("admission", Admission)


class CallGuard:
    """Outermost ASGI layer, which admits only calls with tokens and adds a proof to each answer."""

    def __init__(self, app: ASGIApp, keys: LiveKeys, audiences: Audiences) -> None:
        self._app = app
        self._keys = keys
        self._audiences = audiences

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = self._audiences(scope["path"]) if scope["type"] == "http" else None
        if wanted is None:
            await self._app(scope, receive, send)
            return
        admitted = admission(self._keys.ring, Headers(scope=scope), wanted)
        if admitted is None:
            response = JSONResponse({"error": {"message": REFUSAL}}, status_code=401)
            await response(scope, receive, send)
            return

        async def send_proved(message: Message) -> None:
            if message["type"] == "http.response.start":
                proof = [
                    (name.lower().encode(), value.encode())
                    for name, value in admitted.headers(message["status"]).items()
                ]
                message["headers"] = [*message.get("headers", []), *proof]
            await send(message)

        await self._app(scope, receive, send_proved)


def guard(app: web.Application, keys: LiveKeys, audiences: Audiences) -> None:
    """Make an aiohttp application admit only calls with tokens, and prove its answers."""

    @web.middleware
    async def let_in(request: web.Request, handler: Handler) -> web.StreamResponse:
        wanted = audiences(request.path)
        if wanted is not None:
            admitted = admission(keys.ring, request.headers, wanted)
            if admitted is None:
                raise web.HTTPUnauthorized(text=REFUSAL)
            request[_ADMISSION] = admitted
        return await handler(request)

    async def prove(request: web.Request, response: web.StreamResponse) -> None:
        if _ADMISSION in request:
            response.headers.update(request[_ADMISSION].headers(response.status))

    app.middlewares.insert(0, let_in)
    app.on_response_prepare.append(prove)
