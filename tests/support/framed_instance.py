"""An instance's token server without an engine, whose tokens come from a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.responses import Response
from support.keys import live

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.engine.engine import Leave
from macroserve.engine.token_frames import CANCEL_PATH
from macroserve.engine.tokens import Choice, RefusedError, TokenReader, TokenRequest
from macroserve.serving.http.server import HttpServer, bound
from macroserve.serving.ingress.instance_client import SILENCE_S, InstanceClient
from macroserve.serving.instance.token_frames import TokenFrames
from macroserve.serving.security.call_guard import CallGuard
from macroserve.serving.security.key_source import LiveKeys
from macroserve.serving.security.tls import base_url

NAME = "instance-0"


@dataclass
class Sequence:
    """A request at the instance."""

    request: TokenRequest
    reader: TokenReader
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its client has left."""
    num_tokens: int | None = None
    """Tokens up to a stop string, if one has ended it."""

    def put(self, *token_ids: int, finish: str | None = None, stop: str | None = None) -> None:
        self.reader.put(Choice([*token_ids], finish, stop))

    def leave(self, num_tokens: int | None) -> None:
        self.num_tokens = num_tokens
        self.ended.set()


@dataclass
class FramedInstance:
    address: str = ""
    sequences: list[Sequence] = field(default_factory=list)
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has arrived; a test clears it."""
    refusal: RefusedError | None = None
    early: tuple[int, ...] = ()
    """Tokens of each request that are sent before the answer to its call."""
    paths: list[str] = field(default_factory=list)
    """Paths of all calls, in order."""
    num_lost_cancels: int = 0
    """Number of the next cancellations that fail."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a cancellation has failed."""
    server: HttpServer | None = None
    frames: TokenFrames | None = None

    async def submit(self, request: TokenRequest, reader: TokenReader) -> Leave:
        if self.refusal is not None:
            raise self.refusal
        self.sequences.append(sequence := Sequence(request, reader))
        if self.early:
            sequence.put(*self.early)
            await asyncio.sleep(0.05)
        self.taken.set()
        return sequence.leave

    async def sequence(self, index: int = 0) -> Sequence:
        """Wait for a request and return it."""
        while len(self.sequences) <= index:
            self.taken.clear()
            await self.taken.wait()
        return self.sequences[index]


@asynccontextmanager
async def framed_instance(keys: LiveKeys | None = None) -> AsyncIterator[FramedInstance]:
    keys = keys or live()
    instance = FramedInstance()
    instance.frames = TokenFrames(instance.submit, lambda: None)

    app = Starlette(routes=instance.frames.routes())

    async def noted(scope: Any, receive: Any, send: Any) -> None:
        instance.paths.append(scope["path"])
        if scope["path"] == CANCEL_PATH and instance.num_lost_cancels:
            instance.num_lost_cancels -= 1
            instance.lost.set()
            await Response(status_code=500)(scope, receive, send)
            return
        await app(scope, receive, send)

    guarded = CallGuard(noted, keys, lambda _: [Audience(Purpose.GENERATION, NAME)])
    instance.server = HttpServer(guarded, grace_s=1, tls=keys.tls)
    sock = bound("127.0.0.1", 0)
    await instance.server.start(sock)
    instance.address = base_url(keys.tls, "127.0.0.1", sock.getsockname()[1])
    yield instance
    instance.frames.close()
    await instance.server.stop()


@asynccontextmanager
async def client(
    silence_s: float = SILENCE_S, keys: LiveKeys | None = None
) -> AsyncIterator[InstanceClient]:
    streams = InstanceClient(keys or live(), silence_s)
    await streams.start()
    yield streams
    await streams.stop()
