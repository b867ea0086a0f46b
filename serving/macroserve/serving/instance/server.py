"""The control process of an instance, which starts and watches its server process.

The server process (``token_server``) takes requests, one of which may block its loop for seconds.
No client reaches the control process, which reports the instance's status and stops the instance
when its engine makes no progress (``core.health``). Its port serves, besides ``GET /health``, calls
with a token (``calls``):

- ``GET /macroserve/status?cell=NAME``: joins the instance to that cell; the answer is an endless
  stream of statuses, a JSON line each, repeated once a second while nothing changes.
- ``GET /macroserve/identity``: freshly signed handle and current cell.
- ``POST /macroserve/command``: commands for the engine's scheduler.
"""

import asyncio
import contextlib
import math
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from macroserve.api import messages
from macroserve.api.access_token import Audience
from macroserve.api.handle import InstanceHandle, sign
from macroserve.api.keys import Purpose
from macroserve.api.logs import get_logger
from macroserve.api.messages import IDENTITY_PATH, InstanceIdentity
from macroserve.core.health import EngineBeat, HealthJudge
from macroserve.core.instance_start import InstanceStart
from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.status import StatusReceiver, decode
from macroserve.serving.background import BackgroundTasks
from macroserve.serving.http.server import HttpServer, bound
from macroserve.serving.instance.channel import ServerBeat, Started
from macroserve.serving.instance.start import CacheWatch, process_age_s
from macroserve.serving.security.call_guard import CallGuard
from macroserve.serving.security.key_source import KeySource, LiveKeys
from macroserve.serving.security.tls import base_url

log = get_logger(__name__)

STOP_GRACE_S = 1.0
"""Time for the control server's responses; status streams are closed first."""
JUDGE_S = 0.5
OPEN_PATHS = ("/health",)


@dataclass(frozen=True, slots=True)
class InstanceOptions:
    name: str
    namespace: str
    incarnation: int
    """Number that grows with every start under that name."""
    keys: KeySource
    pool: Pool = Pool.LP
    host: str = "127.0.0.1"
    """Address of the control server."""
    control_port: int = 0
    """0 means any free port."""
    grace_s: float = 30.0
    """Time for running requests to finish when the instance leaves, seconds."""
    caches: CacheWatch | None = None
    """Caches before the start; None if the start is not measured."""


class Tokens(Protocol):
    """A TokenServer, in this process or another."""

    async def start(
        self, status_path: str | None, on_beat: Callable[[ServerBeat], None]
    ) -> Started: ...

    @property
    def fault(self) -> str | None: ...

    async def command(self, verb: str, argument: Any = None) -> Any: ...

    async def stop(self) -> None: ...

    def kill(self) -> None: ...


class StatusFeed:
    """A stream of statuses for one reader at a time; a new reader replaces the old one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before: bytes | None = None
        """The status before the latest one."""
        self._latest: bytes | None = None
        self._published_s = -math.inf
        # A reader this far behind misses the oldest. The newest contains everything except the
        # admitted ids, which time out in the cell's ledger.
        self._unread: deque[bytes] = deque(maxlen=256)
        self._changed = asyncio.Event()
        self._reader = 0

    def publish(self, status: bytes) -> None:
        self._before, self._latest = self._latest, status
        self._published_s = self._clock()
        self._unread.append(status)
        self._changed.set()

    @property
    def idle(self) -> bool:
        """Return whether the latest status shows no request."""
        status = decode(self._latest) if self._latest else None
        return status is None or not (status.num_running + status.num_waiting)

    def close(self) -> None:
        """End the current reader's stream."""
        self._reader += 1
        self._changed.set()

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the latest status, then each new one or, after a second without, the same again, as
        JSON lines.

        While statuses come, the one before is yielded first: a cell that joins a working instance
        sees at once that it finishes iterations.
        """
        self._reader = me = self._reader + 1
        self._changed.set()
        if self._clock() - self._published_s > messages.HEARTBEAT_S:
            self._unread.clear()
        elif len(self._unread) < 2:
            self._unread = deque(filter(None, (self._before, self._latest)), self._unread.maxlen)
        while self._reader == me:
            lines = [*self._unread] or [self._latest or b""]
            self._unread.clear()
            self._changed.clear()
            yield b"".join(line + b"\n" for line in lines)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(messages.HEARTBEAT_S):
                    await self._changed.wait()


class InstanceServer:
    """The control server of an instance, whose engine and token server are in ``tokens``."""

    def __init__(self, settings: EngineSettings, options: InstanceOptions, tokens: Tokens) -> None:
        self._settings = settings
        self._options = options
        self._tokens = tokens
        self._keys = LiveKeys(options.keys)
        self._feed = StatusFeed()
        self._cell: str | None = None
        self._handle: InstanceHandle | None = None
        self._judge: HealthJudge | None = None
        self._fault: str | None = None
        self._server: HttpServer | None = None
        self._receiver: asyncio.BaseTransport | None = None
        self._judging = BackgroundTasks()
        self._folder = tempfile.TemporaryDirectory(prefix="macroserve-")

    async def start(self) -> InstanceIdentity:
        """Start the instance; return when it has generated a token and both servers listen."""
        options = self._options
        listener = bound(options.host, options.control_port)
        path = f"{self._folder.name}/status"
        self._receiver = await StatusReceiver.listen(path, self._feed.publish, self._observe_engine)
        started = await self._tokens.start(path, self._observe_server)
        # The engine is connected; an instance that is killed would leave the folder behind.
        self._folder.cleanup()
        shape = started.shape
        self._judge = HealthJudge(_now())
        self._handle = InstanceHandle(
            name=options.name,
            namespace=options.namespace,
            incarnation=options.incarnation,
            address=started.address,
            pool=options.pool,
            hybrid_cache=shape.hybrid_cache,
            tensor_parallel=self._settings.tensor_parallel,
            pipeline_parallel=self._settings.pipeline_parallel,
            num_blocks=shape.num_blocks,
            block_size=shape.block_size,
            max_model_len=self._settings.max_model_len,
            max_num_seqs=shape.max_num_seqs,
            control=base_url(self._keys.tls, options.host, listener.getsockname()[1]),
            prefix_caching=shape.prefix_caching,
            start=await self._measured(started),
        )
        app = Starlette(
            routes=[
                Route(messages.STATUS_PATH, self._status),
                Route(IDENTITY_PATH, self._identity),
                Route(messages.COMMAND_PATH, self._command, methods=["POST"]),
                Route("/health", self._health),
            ]
        )
        guarded = CallGuard(app, self._keys, self._audiences)
        self._server = HttpServer(guarded, STOP_GRACE_S, tls=self._keys.tls)
        await self._server.start(listener)
        self._judging.start("health check", self._keep_judging(), may_end=True)
        log.info("hybrid cache decided", instance=options.name, decision=shape.hybrid_cache)
        log.info("prefix caching decided", instance=options.name, decision=shape.prefix_caching)
        if start := self._handle.start:
            log.info("instance started", instance=options.name, **msgspec.structs.asdict(start))
        return self.identity()

    async def _measured(self, started: Started) -> InstanceStart | None:
        caches = self._options.caches
        if caches is None:
            return None
        # In a thread, as a network file system may be slow.
        grown = await asyncio.to_thread(lambda: caches.grown)
        shape = started.shape
        return InstanceStart(process_age_s(), shape.load_s, shape.warm_up_s, not grown)

    def identity(self) -> InstanceIdentity:
        """Return the identity, with a signed handle. Raises RuntimeError when the instance can no
        longer serve."""
        assert self._handle is not None, "the instance is not started"
        self.check()
        handle = sign(self._handle, self._keys.ring, time.time())
        return InstanceIdentity(self._options.name, handle, self._cell)

    @property
    def fault(self) -> str | None:
        """Return why the instance cannot serve, as the end of a sentence; None if it can."""
        if self._fault is not None:
            return self._fault
        if self._server is None or not self._server.alive:
            return "its control server has ended"
        return self._judging.fault

    @property
    def healthy(self) -> bool:
        return self.fault is None

    def check(self) -> None:
        """Raise RuntimeError when the instance can no longer serve."""
        if fault := self.fault:
            raise RuntimeError(fault)

    async def leave(self) -> None:
        """Accept no more requests, hand back the waiting ones, and let running ones finish within
        the grace period; other instances continue the rest."""
        with contextlib.suppress(TimeoutError, ValueError):
            async with asyncio.timeout(self._options.grace_s):
                await self._tokens.command("drain", True)
                while self.healthy and not self._feed.idle:  # noqa: ASYNC110 - by statuses
                    await asyncio.sleep(0.1)

    async def stop(self) -> None:
        if self._fault is None:
            self._judging.cancel()
        await self._close()
        if self._fault is None:
            await self._tokens.stop()
        if self._receiver is not None:
            self._receiver.close()
        self._folder.cleanup()

    def kill(self) -> None:
        """Stop at once, like a killed process: close the ports and reset all connections."""
        self._tokens.kill()
        self._judging.cancel()
        if self._server is not None:
            self._server.kill()

    async def _close(self) -> None:
        self._feed.close()
        if self._server is not None:
            await self._server.stop()

    # -- health

    def _observe_engine(self, beat: EngineBeat) -> None:
        if self._judge is not None:
            self._judge.observe_engine(beat, _now())

    def _observe_server(self, beat: ServerBeat) -> None:
        if self._judge is not None:
            self._judge.observe_server(beat.num_unfinished, _now())

    async def _keep_judging(self) -> None:
        assert self._judge is not None
        judge = self._judge
        while not (fault := self._tokens.fault or judge.fault(_now())):  # noqa: ASYNC110 - by time
            await asyncio.sleep(JUDGE_S)
        # The server process is killed before the status stream ends, so that it cannot answer.
        self._fault = fault
        self._tokens.kill()
        log.error("instance shut itself down", instance=self._options.name, reason=fault)
        await self._close()

    # -- endpoints

    def _audiences(self, path: str) -> tuple[Audience, ...] | None:
        if path in OPEN_PATHS:
            return None
        own = Audience(Purpose.CONTROL, self._options.name)
        # Discovery has no names yet.
        return (own, Audience(Purpose.CONTROL)) if path == IDENTITY_PATH else (own,)

    async def _status(self, request: Request) -> Response:
        self._cell = request.query_params.get("cell")
        return StreamingResponse(self._feed.read(), media_type="application/x-ndjson")

    async def _identity(self, request: Request) -> Response:
        return Response(messages.encode(self.identity()), media_type="application/json")

    async def _command(self, request: Request) -> Response:
        try:
            order = msgspec.json.decode(await request.body(), type=messages.CommandOrder)
            result = await self._tokens.command(order.verb, order.argument)
        except (msgspec.MsgspecError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        if order.verb == "set_pool" and self._handle is not None:
            self._handle = replace(self._handle, pool=Pool(order.argument))
        return JSONResponse({"result": result})

    async def _health(self, request: Request) -> Response:
        return Response(status_code=200 if self.healthy else 503)


def _now() -> float:
    return asyncio.get_running_loop().time()
