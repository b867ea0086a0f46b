"""The guard of an instance's servers."""

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from macroserve.serving.auth import TokenCheck


class SecretOnly:
    """Lets in who knows the deployment's secret. open_paths: are for everybody."""

    def __init__(self, app: ASGIApp, secret: str, open_paths: Collection[str]) -> None:
        self._app = app
        self._open_paths = open_paths
        self._check = TokenCheck([secret])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "http"
            and scope["path"] not in self._open_paths
            and not self._check.allows(Headers(scope=scope))
        ):
            response = JSONResponse({"error": {"message": "not authorized"}}, status_code=401)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)
