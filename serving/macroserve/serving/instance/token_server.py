"""An instance's engine and its token endpoint, which run in the instance's server process.

It serves the paths of ``engine.token_frames`` and ``GET /metrics``. Health checks go to
``instance.server``, as a step of the engine may hold up this process for seconds.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from macroserve.api import messages
from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.core.health import BEAT_S
from macroserve.core.status import Pool
from macroserve.engine.engine import Engine
from macroserve.engine.settings import EngineSettings
from macroserve.serving.background import BackgroundTasks
from macroserve.serving.http.server import HttpServer, bound
from macroserve.serving.instance.channel import ServerBeat, Started
from macroserve.serving.instance.token_frames import TokenFrames
from macroserve.serving.security.call_guard import CallGuard
from macroserve.serving.security.key_source import KeySource, LiveKeys
from macroserve.serving.security.tls import base_url

STOP_GRACE_S = 5.0
"""Time for running responses to finish at the stop."""

OPEN_PATHS = ("/metrics",)


def build_engine(settings: EngineSettings, pool: Pool, thread: Executor | None) -> Engine:
    if settings.emulated:
        from macroserve.engine.emulated import EmulatedEngine

        return EmulatedEngine(settings, pool)
    from macroserve.engine.rehearsal import rehearse
    from macroserve.engine.vllm.environment import prepare_environment

    rehearse(settings.rehearse)
    prepare_environment()
    from macroserve.engine.vllm.engine import VllmEngine

    return VllmEngine(settings, pool, thread)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenServerOptions:
    """Options of a token server, as plain data that can be sent to another process."""

    settings: EngineSettings
    name: str
    """Name of the instance."""
    pool: Pool
    host: str
    port: int = 0
    """0 means any free port."""
    keys: KeySource


class TokenServer:
    """An engine behind its HTTP endpoint for tokens.

    thread: see ``VllmEngine``.
    """

    def __init__(self, options: TokenServerOptions, thread: Executor | None = None) -> None:
        self._options = options
        self._keys = LiveKeys(options.keys)
        self._audience = Audience(Purpose.GENERATION, options.name)
        self._engine = build_engine(options.settings, options.pool, thread)
        self._frames = TokenFrames(self._engine.submit, lambda: self._engine.fault)
        self._server: HttpServer | None = None
        self._beating = BackgroundTasks()

    async def start(
        self, status_path: str | None, on_beat: Callable[[ServerBeat], None]
    ) -> Started:
        """Start the engine; return when it has generated a token and the server listens.

        status_path: path of the socket for the engine's statuses.
        on_beat: called every BEAT_S by the event loop.
        """
        listener = bound(self._options.host, self._options.port)
        await self._engine.start(status_path)
        app = Starlette(routes=[*self._frames.routes(), Route("/metrics", self._metrics)])
        guarded = CallGuard(app, self._keys, self._audiences)
        self._server = HttpServer(guarded, STOP_GRACE_S, tls=self._keys.tls)
        await self._server.start(listener)
        self._beating.start("heartbeat", self._beat(on_beat))
        address = base_url(self._keys.tls, self._options.host, listener.getsockname()[1])
        return Started(address, self._engine.shape)

    @property
    def fault(self) -> str | None:
        """Return why the server can no longer serve, as the end of a sentence; else None."""
        if self._server is not None and not self._server.alive:
            return self._engine.fault or "its HTTP server has ended"
        return self._engine.fault or self._beating.fault

    async def command(self, verb: str, argument: Any = None) -> Any:
        """Run a command: ``probe``, which generates a token, or one of ``engine.commands``. Raises
        ValueError for an unknown one."""
        if verb == messages.PROBE:
            return await self._engine.probe()
        return await self._engine.command(verb, argument)

    async def stop(self) -> None:
        await self._beating.stop()
        self._frames.close()
        if self._server is not None:
            await self._server.stop()
        await self._engine.stop()

    def kill(self) -> None:
        """Stop at once: close the port and reset all connections."""
        assert self._server is not None
        self._beating.cancel()
        self._server.kill()

    async def _beat(self, on_beat: Callable[[ServerBeat], None]) -> None:
        while True:
            on_beat(ServerBeat(self._engine.num_unfinished, self.fault))
            await asyncio.sleep(BEAT_S)

    def _audiences(self, path: str) -> tuple[Audience, ...] | None:
        return None if path in OPEN_PATHS else (self._audience,)

    async def _metrics(self, request: Request) -> Response:
        """Return vLLM's metrics, under their own names."""
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
