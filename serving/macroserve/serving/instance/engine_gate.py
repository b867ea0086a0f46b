"""An instance's token endpoint is closed once its engine has failed."""

from collections.abc import Callable
from http import HTTPStatus

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from macroserve.engine.token_frames import CALL_PATH, FRAMES_PATH
from macroserve.engine.tokens import GENERATE_PATH

_PATHS = (CALL_PATH, FRAMES_PATH, GENERATE_PATH)


class EngineGate:
    """The gate answers 503 to requests that come after the engine failed.

    The server outlives its engine by up to a second. A request that comes meanwhile has no part in
    the failure, and its ingress counts a 503 as an attempt that reached no instance. vLLM would
    answer 500, as to the request that the engine failed under.

    fault: why the engine can serve no more; None while it can.
    """

    def __init__(self, app: ASGIApp, fault: Callable[[], str | None]) -> None:
        self._app = app
        self._fault = fault

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in _PATHS and (fault := self._fault()):
            body = {"error": {"message": fault}}
            response = JSONResponse(body, status_code=HTTPStatus.SERVICE_UNAVAILABLE)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)
