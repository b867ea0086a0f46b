"""Instances with behavior set by a test, and a directory that returns them in order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from support.ingress_counts import counted
from support.keys import live
from support.slo_classes import default_class

from macroserve.api import messages
from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.core.routing.attempts import InstanceRun
from macroserve.core.status import Pool
from macroserve.engine.token_frames import (
    CALL_PATH,
    CANCEL_PATH,
    CONNECTION_HEADER,
    FRAMES_PATH,
    Call,
    Cancel,
    Item,
    decode_call,
    decode_cancel,
    frames,
)
from macroserve.serving.ingress.cell_directory import RoutedInstance
from macroserve.serving.ingress.dispatcher import Dispatcher
from macroserve.serving.ingress.instance_client import SILENCE_S
from macroserve.serving.ingress.metrics import IngressMetrics
from macroserve.serving.security.call_guard import guard

Behavior = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""Answer to each request of an ingress, except cancellations."""

CONNECTIONS = web.AppKey("connections", dict[str, tuple[web.Request, web.StreamResponse]])


class Attempt:
    """A request at a fake instance."""

    def __init__(self, http: web.Request, call: Call) -> None:
        self._http = http
        self._stream = call.stream
        self._opened, self.frames = http.app[CONNECTIONS][call.connection]
        self.request = call.request
        self.reply = web.StreamResponse()

    async def accept(self) -> None:
        await self.reply.prepare(self._http)
        await self.reply.write_eof()

    async def send(
        self,
        *token_ids: int,
        finish: str | None = None,
        stop: str | None = None,
        error: str | None = None,
    ) -> None:
        item = Item(self._stream, [*token_ids], finish, stop, error=error)
        await self.frames.write(b"".join(frames([item])))

    def die(self) -> None:
        for request in (self._opened, self._http):
            if request.transport is not None:
                request.transport.abort()


class Framed:
    """The behavior of an instance that opens connections and acts on each call."""

    def __init__(self, behave: Callable[[Attempt], Awaitable[web.StreamResponse | None]]) -> None:
        self.behave = behave

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.path == FRAMES_PATH:
            return await _opened(request)
        attempt = Attempt(request, decode_call(await request.read()))
        return await self.behave(attempt) or attempt.reply


async def _opened(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"".join(frames(())))
    request.app[CONNECTIONS][request.headers[CONNECTION_HEADER]] = request, response
    await asyncio.sleep(3600)
    raise AssertionError


@Framed
async def good(attempt: Attempt) -> None:
    """Stream all requested tokens."""
    await attempt.accept()
    count = attempt.request.max_new_tokens
    for token in range(1, count):
        await attempt.send(token)
    await attempt.send(count, finish="length")


async def resets(request: web.Request) -> web.StreamResponse:
    """Reset the connection before an answer."""
    await request.read()
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(60)
    raise AssertionError


@Framed
async def dies(attempt: Attempt) -> None:
    attempt.die()
    await asyncio.sleep(60)


@Framed
async def dies_after_a_token(attempt: Attempt) -> None:
    await attempt.accept()
    await attempt.send(7)
    await asyncio.sleep(0.02)
    attempt.die()


async def hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError


@Framed
async def hangs_at_the_call(attempt: Attempt) -> None:
    await asyncio.sleep(3600)


@Framed
async def hangs_after_a_token(attempt: Attempt) -> None:
    await attempt.accept()
    await attempt.send(7)


@Framed
async def ends_the_connection(attempt: Attempt) -> None:
    await attempt.accept()
    await attempt.send(1)
    await attempt.frames.write_eof()


async def taken_note(request: web.Request) -> web.StreamResponse:
    return web.Response(status=204)


def answers(status: int, text: str, content_type: str = "application/json") -> Behavior:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, content_type=content_type)

    return answer


def refuses(status: int, text: str) -> Behavior:
    @Framed
    async def refuse(attempt: Attempt) -> web.StreamResponse:
        return web.Response(status=status, text=text, content_type="application/json")

    return refuse


def sends(
    *token_ids: int, finish: str | None = None, stop: str | None = None, error: str | None = None
) -> Framed:
    @Framed
    async def send(attempt: Attempt) -> None:
        await attempt.accept()
        await attempt.send(*token_ids, finish=finish, stop=stop, error=error)

    return send


DRAINED = sends(1, finish="abort", stop="macroserve:drain")


@dataclass
class FakeDirectory:
    """A directory that returns the first member that is not excluded, or None."""

    members: dict[str, messages.CellMember] = field(default_factory=dict)
    explained: frozenset[InstanceRun] = frozenset()
    leaving: set[str] = field(default_factory=set)
    queries: list[messages.RouteQuery] = field(default_factory=list)
    settled: list[tuple[str, tuple[InstanceRun, ...]]] = field(default_factory=list)
    late: bool = False

    async def route(self, query: messages.RouteQuery) -> RoutedInstance | None:
        self.queries.append(query)
        for member in self.members.values():
            if member.name not in query.exclude:
                return RoutedInstance(member.run, member.address, "cell-0", "test")
        return None

    async def changed(self, timeout_s: float) -> None:
        await asyncio.sleep(0)

    async def settle(
        self, routed: RoutedInstance, route_id: str, explained: tuple[InstanceRun, ...] = ()
    ) -> None:
        self.settled.append((routed.instance, explained))
        self.explained |= frozenset(explained)

    def is_leaving(self, run: InstanceRun) -> bool:
        return run.instance in self.leaving


@dataclass
class Fakes:
    directory: FakeDirectory
    dispatcher: Dispatcher
    metrics: IngressMetrics
    calls: list[str]
    cancelled: list[Cancel]

    async def cancels(self, count: int) -> list[Cancel]:
        """Wait for so many cancellations and return all."""
        while len(self.cancelled) < count:  # noqa: ASYNC110 - of another task
            await asyncio.sleep(0.01)
        return self.cancelled

    def metric(self, name: str, **labels: str) -> float:
        return counted(self.metrics, name, **labels)


@asynccontextmanager
async def fakes(
    clock: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
    silence_s: float = SILENCE_S,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    on_cancel: Behavior = taken_note,
    strangers: Collection[str] = (),
    **behaviors: Behavior | None,
) -> AsyncIterator[Fakes]:
    """Start instances by name; None means an address without a server.

    on_cancel: answer of each to a cancellation.
    strangers: instances that do not prove their answers.
    """
    directory, calls, cancelled = FakeDirectory(), [], []
    metrics = IngressMetrics("default", "test", [default_class()])
    async with AsyncExitStack() as stack:
        for name, behavior in behaviors.items():
            port = await _serve(
                stack, name, behavior, calls, on_cancel, cancelled, name in strangers
            )
            address = f"http://127.0.0.1:{port}"
            directory.members[name] = messages.CellMember(name, address, Pool.LP, 1)
        dispatcher = Dispatcher(
            directory,
            default_class(),
            live(),
            metrics,
            "model",
            silence_s=silence_s,
            clock=clock,
            sleep=sleep,
        )
        await dispatcher.start()
        stack.push_async_callback(dispatcher.stop)
        yield Fakes(directory, dispatcher, metrics, calls, cancelled)


async def _serve(
    stack: AsyncExitStack,
    name: str,
    behavior: Behavior | None,
    calls: list[str],
    on_cancel: Behavior,
    cancelled: list[Cancel],
    is_stranger: bool,
) -> int:
    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path == CALL_PATH or not isinstance(behavior, Framed):
            calls.append(name)
        assert behavior is not None
        return await behavior(request)

    async def note(request: web.Request) -> web.StreamResponse:
        cancelled.append(decode_cancel(await request.read()))
        return await on_cancel(request)

    app = web.Application()
    app[CONNECTIONS] = {}
    app.router.add_get(FRAMES_PATH, handle)
    app.router.add_post(CALL_PATH, handle)
    app.router.add_post(CANCEL_PATH, note)
    if not is_stranger:
        guard(app, live(), lambda path: [Audience(Purpose.GENERATION, name)])
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    if behavior is None:
        await runner.cleanup()
    else:
        stack.push_async_callback(runner.cleanup)
    return port
