"""An instance server: one engine behind HTTP, and its status for whoever schedules it.

Besides the engine's token endpoint it serves, to holders of the deployment's secret:

- ``GET /macroserve/status?cell=NAME``: joins the instance to that cell; the answer is an endless
  stream of statuses, a JSON line each, repeated once a second while nothing happens.
- ``GET /macroserve/identity``: signed handle and current cell.
- ``POST /macroserve/command``: orders for the engine's scheduler.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from macroserve.core.handle import InstanceHandle, sign
from macroserve.core.reports import IDENTITY_PATH, InstanceIdentity
from macroserve.core.views import Pool
from macroserve.engine.engine import Engine
from macroserve.engine.settings import EngineSettings
from macroserve.engine.status import decode
from macroserve.serving import wire
from macroserve.serving.auth import TokenCheck
from macroserve.serving.http_server import HttpServer, bound

STOP_GRACE_S = 5.0
"""For responses that are under way when the server stops."""

OPEN_PATHS = ("/health", "/metrics")


@dataclass(frozen=True, slots=True)
class InstanceOptions:
    """incarnation: grows with every start under that name. secret: the deployment's, also signs
    handles. host, port: where to listen, at any free port by default. grace_s: how long requests
    may take when it leaves."""

    name: str
    namespace: str
    incarnation: int
    secret: str = field(repr=False)
    pool: Pool = Pool.LP
    host: str = "127.0.0.1"
    port: int = 0
    grace_s: float = 30.0


def build_engine(settings: EngineSettings, pool: Pool) -> Engine:
    if settings.emulated:
        from macroserve.engine.emulated import EmulatedEngine

        return EmulatedEngine(settings, pool)
    from macroserve.engine.vllm.environment import prepare_environment

    prepare_environment()
    from macroserve.engine.vllm.engine import VllmEngine

    return VllmEngine(settings, pool)


class StatusFeed:
    """Statuses for one reader at a time: a new reader takes over from the old one."""

    def __init__(self) -> None:
        self._latest: bytes | None = None
        # A reader that falls this far behind misses the oldest; the newest says it all but for
        # the ids taken in, which a cell's ledger times out.
        self._unread: deque[bytes] = deque(maxlen=256)
        self._changed = asyncio.Event()
        self._reader = 0

    def publish(self, status: bytes) -> None:
        self._latest = status
        self._unread.append(status)
        self._changed.set()

    @property
    def idle(self) -> bool:
        """Nothing runs or waits, by the latest status."""
        status = decode(self._latest) if self._latest else None
        return status is None or not (status.num_running + status.num_waiting)

    def close(self) -> None:
        """No more for the present reader."""
        self._reader += 1
        self._changed.set()

    async def read(self) -> AsyncIterator[bytes]:
        """JSON lines: the latest status at once, then each as it comes, or again every second."""
        self._reader = me = self._reader + 1
        self._changed.set()
        while self._reader == me:
            lines = [*self._unread] or [self._latest or b""]
            self._unread.clear()
            self._changed.clear()
            yield b"".join(line + b"\n" for line in lines)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wire.HEARTBEAT_S):
                    await self._changed.wait()


class InstanceServer:
    def __init__(self, settings: EngineSettings, options: InstanceOptions) -> None:
        self._settings = settings
        self._options = options
        self._engine = build_engine(settings, options.pool)
        self._feed = StatusFeed()
        self._cell: str | None = None
        self._handle: InstanceHandle | None = None
        self._server: HttpServer | None = None

    async def start(self) -> InstanceIdentity:
        """Returns once a real token has been generated and the server listens."""
        app = await self._engine.start(self._feed.publish)
        app.router.routes.extend(
            [
                Route(wire.STATUS_PATH, self._status),
                Route(IDENTITY_PATH, self._identity),
                Route(wire.COMMAND_PATH, self._command, methods=["POST"]),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ]
        )
        app.add_middleware(SecretOnly, secret=self._options.secret)
        listener = bound(self._options.host, self._options.port)
        port = listener.getsockname()[1]
        self._server = HttpServer(app, STOP_GRACE_S)
        # vLLM's handler of a dead engine stops this server.
        app.state.server = self._server
        await self._server.start(listener)
        shape = self._engine.shape
        print(f"Hybrid cache {shape.hybrid_cache}", flush=True)
        self._handle = InstanceHandle(
            name=self._options.name,
            namespace=self._options.namespace,
            incarnation=self._options.incarnation,
            address=f"http://{self._options.host}:{port}",
            pool=self._options.pool,
            hybrid_cache=shape.hybrid_cache,
            tensor_parallel=self._settings.tensor_parallel,
            pipeline_parallel=self._settings.pipeline_parallel,
            num_blocks=shape.num_blocks,
            block_size=shape.block_size,
            max_model_len=self._settings.max_model_len,
            max_num_seqs=shape.max_num_seqs,
        )
        return self.identity()

    def identity(self) -> InstanceIdentity:
        assert self._handle is not None, "the instance is not started"
        handle = sign(self._handle, self._options.secret.encode())
        return InstanceIdentity(self._options.name, handle, self._cell)

    @property
    def healthy(self) -> bool:
        return self._engine.healthy and self._server is not None and self._server.alive

    def check(self) -> None:
        """Raises RuntimeError when the instance can serve no more."""
        if not self.healthy:
            raise RuntimeError("the engine has died")

    async def leave(self) -> None:
        """Take no more requests, hand back those that wait, and let the others end within the
        grace: what is still there then goes on elsewhere."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.grace_s):
                await self._engine.command("drain", True)
                while self.healthy and not self._feed.idle:  # noqa: ASYNC110 - only statuses tell
                    await asyncio.sleep(0.1)

    async def stop(self) -> None:
        self._feed.close()
        if self._server is not None:
            await self._server.stop()
        await self._engine.stop()

    # -- endpoints

    async def _status(self, request: Request) -> Response:
        self._cell = request.query_params.get("cell")
        return StreamingResponse(self._feed.read(), media_type="application/x-ndjson")

    async def _identity(self, request: Request) -> Response:
        return Response(wire.encode(self.identity()), media_type="application/json")

    async def _command(self, request: Request) -> Response:
        try:
            order = msgspec.json.decode(await request.body(), type=wire.CommandOrder)
            result = await self._engine.command(order.verb, order.argument)
        except (msgspec.MsgspecError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        if order.verb == "set_pool" and self._handle is not None:
            self._handle = replace(self._handle, pool=Pool(order.argument))
        return JSONResponse({"result": result})

    async def _metrics(self, request: Request) -> Response:
        """What the engine registered: vLLM's own metrics under their own names."""
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    async def _health(self, request: Request) -> Response:
        return Response(status_code=200 if self.healthy else 503)


class SecretOnly:
    """Lets in who knows the deployment's secret; health and metrics are open."""

    def __init__(self, app: ASGIApp, secret: str) -> None:
        self._app = app
        self._check = TokenCheck([secret])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "http"
            and scope["path"] not in OPEN_PATHS
            and not self._check.allows(Headers(scope=scope))
        ):
            response = JSONResponse({"error": {"message": "not authorized"}}, status_code=401)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)
