"""Control of a running ``up`` by other commands, which change its manifest or size."""

from collections.abc import Callable

import httpx
from aiohttp import web

from macroserve.api.auth import TokenCheck, bearer
from macroserve.api.manifest import ManifestError
from macroserve.local.state import RunningDeployment


class ControlServer:
    """Server for orders on a loopback port, authorized by a token.

    apply: takes YAML.
    scale: takes a number of instances. Both return a sentence, or raise ManifestError to refuse.
    """

    def __init__(
        self, token: str, apply: Callable[[str], str], scale: Callable[[int], str]
    ) -> None:
        self._check = TokenCheck([token])
        self._apply = apply
        self._scale = scale
        app = web.Application()
        app.add_routes([web.post("/{order}", self._take)])
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> str:
        """Listen, and return the base URL."""
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        if not self._check.allows(request.headers):
            raise web.HTTPUnauthorized(text="the control token is wrong")
        text = await request.text()
        try:
            match request.match_info["order"]:
                case "apply":
                    return web.Response(text=self._apply(text))
                case "scale":
                    return web.Response(text=self._scale(int(text)))
                case order:
                    raise web.HTTPNotFound(text=f"no such command: {order}")
        except (ManifestError, ValueError) as error:
            raise web.HTTPBadRequest(text=str(error)) from error


class OrderRefusedError(Exception):
    """An error whose message is for users: the running deployment did not accept an order."""


def send(deployment: RunningDeployment, order: str, body: str) -> str:
    try:
        response = httpx.post(
            f"{deployment.control}/{order}",
            content=body,
            headers=bearer(deployment.control_token),
            timeout=10,
            # Do not send the order and its token to a proxy.
            trust_env=False,
        )
    except httpx.HTTPError as error:
        raise OrderRefusedError(f"{deployment.name} does not answer: {error}") from error
    if response.status_code != 200:
        raise OrderRefusedError(response.text)
    return response.text
