"""An ingress replica: text in, text out; tokens inside.

Every replica listens on the same port (SO_REUSEPORT: the kernel spreads connections, no proxy
stands between a client and its tokens) and on one of its own for its peers.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from macroserve.engine.settings import EngineSettings
from macroserve.engine.tokens import RefusedError, TokenRequest
from macroserve.serving.admin import AdminApi
from macroserve.serving.auth import bearer
from macroserve.serving.directory import CellDirectory
from macroserve.serving.dispatch import Dispatcher
from macroserve.serving.guard import ApiKeys, BodyLimit, RetryAfter, error_response
from macroserve.serving.metrics import IngressMetrics, cell_page, merge, scrape

OWN_METRICS_PATH = "/macroserve/metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressOptions:
    """secret: shared inside the deployment. admin_token: for /admin. api_keys: none = open."""

    host: str = "127.0.0.1"
    port: int = 8000
    private_host: str = "127.0.0.1"
    namespace: str = "default"
    macroinstance: str
    secret: str = field(repr=False)
    admin_token: str = field(repr=False)
    api_keys: tuple[str, ...] = field(default=(), repr=False)


class IngressServer:
    """discover: as ``CellDirectory``'s."""

    def __init__(
        self,
        settings: EngineSettings,
        options: IngressOptions,
        discover: Callable[[], Awaitable[Mapping[str, str]]],
    ) -> None:
        self._settings = settings
        self._options = options
        self._discover = discover
        self._metrics = IngressMetrics(options.namespace, options.macroinstance)
        self._ready = False

    async def start(self) -> None:
        """Listening when it returns; ready (``/ready``) once a token came back from an instance."""
        public = _bound(self._options.host, self._options.port, shared=True)
        private = _bound(self._options.private_host, 0)
        port = private.getsockname()[1]
        self._own_address = f"http://{self._options.private_host}:{port}"
        self._directory = CellDirectory(self._discover, self._options.secret, self._own_address)
        self._dispatcher = Dispatcher(
            self._directory,
            self._settings.slo,
            self._options.secret,
            self._metrics,
            self._settings.drop_late,
        )
        await self._directory.start()
        await self._dispatcher.start()
        self._http = aiohttp.ClientSession(headers=bearer(self._options.secret))
        app = await self._application()
        config = uvicorn.Config(
            RetryAfter(ApiKeys(BodyLimit(app), self._options.api_keys)),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=30,
        )
        self._server = uvicorn.Server(config)
        # vLLM's error handlers look for it there.
        app.state.server = self._server
        self._serving = asyncio.create_task(self._server.serve([public, private]))
        self._readiness = asyncio.create_task(self._become_ready())

    async def stop(self) -> None:
        """Accepted requests are finished first, within the server's grace."""
        self._readiness.cancel()
        self._server.should_exit = True
        await self._serving
        await self._dispatcher.stop()
        await self._directory.stop()
        await self._http.close()

    def check(self) -> None:
        """Raises RuntimeError when the replica can serve no more."""
        if self._serving.done():
            raise RuntimeError("the HTTP server has ended")

    async def _application(self) -> Starlette:
        from macroserve.engine.vllm.environment import prepare_environment

        prepare_environment()
        from macroserve.engine.vllm.api import text_app
        from macroserve.engine.vllm.frontend import RemoteLLM
        from macroserve.engine.vllm.options import frontend_config

        llm = RemoteLLM(frontend_config(self._settings), self._dispatcher, self._dispatcher.admit)
        app = await text_app(llm, self._settings)
        admin = AdminApi(self._directory, self._http, self._options.admin_token)
        app.router.routes.extend(
            [
                Route("/health", self._health),
                Route("/ready", self._ready_endpoint),
                Route("/metrics", self._metrics_endpoint),
                Route(OWN_METRICS_PATH, self._own_metrics),
                *admin.routes(),
            ]
        )
        return app

    async def _become_ready(self) -> None:
        """One real token, by the way that every request goes."""
        request = TokenRequest(
            request_id="ready",
            token_ids=(1,),
            max_new_tokens=1,
            sampling={"temperature": 0.0, "ignore_eos": True, "detokenize": False},
            options={},
            restartable=True,
        )
        while not self._ready:
            with contextlib.suppress(RefusedError):
                async for choice in self._dispatcher.stream(request):
                    self._ready = self._ready or bool(choice.token_ids)
            await asyncio.sleep(0.05)

    # -- endpoints

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _ready_endpoint(self, request: Request) -> Response:
        if self._ready and self._directory.members:
            return Response()
        return error_response(503, "no instance has generated a token yet")

    async def _own_metrics(self, request: Request) -> Response:
        return PlainTextResponse(self._metrics.page())

    async def _metrics_endpoint(self, request: Request) -> Response:
        """All ingress replicas', the cells' and the instances', whichever replica is asked."""
        summaries = self._directory.summaries
        peers = {a for s in summaries for a in s.ingresses} - {self._own_address}
        members = self._directory.members.values()
        peer_pages, instance_pages = await asyncio.gather(
            asyncio.gather(*(scrape(self._http, peer + OWN_METRICS_PATH) for peer in peers)),
            asyncio.gather(*(scrape(self._http, m.address + "/metrics") for m in members)),
        )
        names = {
            "namespace": self._options.namespace,
            "macroinstance": self._options.macroinstance,
        }
        pages = [
            (self._metrics.page(), {"ingress": _replica(self._own_address)}),
            *((page, {"ingress": _replica(a)}) for page, a in zip(peer_pages, peers, strict=True)),
            (cell_page(summaries, names), {}),
            *(
                (page, {**names, "instance": m.name, "pool": m.pool.value})
                for page, m in zip(instance_pages, members, strict=True)
            ),
        ]
        return PlainTextResponse(merge(pages), media_type="text/plain; version=0.0.4")


def _replica(address: str) -> str:
    return address.removeprefix("http://")


def _bound(host: str, port: int, shared: bool = False) -> socket.socket:
    """Raises OSError when the address is taken."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((host, port))
    return sock
