"""Instances that do what a test says, and a directory that names them in order."""

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
from macroserve.core.routing.attempts import Run
from macroserve.core.status import Pool
from macroserve.engine.tokens import GENERATE_PATH, STOPPED_PATH
from macroserve.serving.ingress.attempt import SILENCE_S
from macroserve.serving.ingress.cell_directory import RoutedInstance
from macroserve.serving.ingress.dispatcher import Dispatcher
from macroserve.serving.ingress.metrics import IngressMetrics
from macroserve.serving.security.call_guard import guard

Behavior = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def stream(request: web.Request, *events: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(f"data: {event}\n\n".encode())
    return response


def token(value: int, finish_reason: str = "null", stop_reason: str = "null") -> str:
    return (
        f'{{"choices": [{{"token_ids": [{value}], "finish_reason": {finish_reason}, '
        f'"stop_reason": {stop_reason}}}]}}'
    )


async def good(request: web.Request) -> web.StreamResponse:
    """Stream all requested tokens."""
    count = (await request.json())["sampling_params"]["max_tokens"]
    last = token(count, '"length"')
    return await stream(request, *(token(i + 1) for i in range(count - 1)), last)


async def dies(request: web.Request) -> web.StreamResponse:
    """The connection breaks before an answer."""
    await request.read()
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(60)
    raise AssertionError


async def dies_after_a_token(request: web.Request) -> web.StreamResponse:
    await stream(request, token(7))
    await asyncio.sleep(0.02)
    return await dies(request)


async def hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError


async def hangs_after_a_token(request: web.Request) -> web.StreamResponse:
    await stream(request, token(7))
    return await hangs(request)


async def taken_note(request: web.Request) -> web.StreamResponse:
    return web.Response(status=204)


def answers(status: int, text: str, content_type: str = "application/json") -> Behavior:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, content_type=content_type)

    return answer


def ends_with(event: str) -> Behavior:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream(request, event)

    return answer


@dataclass
class FakeDirectory:
    """Places each request on the first member that is not excluded, or says None."""

    members: dict[str, messages.Member] = field(default_factory=dict)
    explained: frozenset[Run] = frozenset()
    leaving: set[str] = field(default_factory=set)
    queries: list[messages.RouteQuery] = field(default_factory=list)
    settled: list[tuple[str, tuple[Run, ...]]] = field(default_factory=list)
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
        self, routed: RoutedInstance, route_id: str, explained: tuple[Run, ...] = ()
    ) -> None:
        self.settled.append((routed.instance, explained))
        self.explained |= frozenset(explained)

    def is_leaving(self, run: Run) -> bool:
        return run.instance in self.leaving


@dataclass
class Fakes:
    directory: FakeDirectory
    dispatcher: Dispatcher
    metrics: IngressMetrics
    calls: list[str]
    stopped: list[bytes]

    def metric(self, name: str, **labels: str) -> float:
        return counted(self.metrics, name, **labels)


@asynccontextmanager
async def fakes(
    clock: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
    silence_s: float = SILENCE_S,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    on_stopped: Behavior = taken_note,
    strangers: Collection[str] = (),
    **behaviors: Behavior | None,
) -> AsyncIterator[Fakes]:
    """Instances by name; None is an address at which nobody listens. on_stopped: what all answer
    to the notice of a stop string. strangers: those who do not prove their answers."""
    directory, calls, stopped = FakeDirectory(), [], []
    metrics = IngressMetrics("default", "test", [default_class()])
    async with AsyncExitStack() as stack:
        for name, behavior in behaviors.items():
            port = await _serve(
                stack, name, behavior, calls, on_stopped, stopped, name in strangers
            )
            address = f"http://127.0.0.1:{port}"
            directory.members[name] = messages.Member(name, address, Pool.LP, 1)
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
        yield Fakes(directory, dispatcher, metrics, calls, stopped)


async def _serve(
    stack: AsyncExitStack,
    name: str,
    behavior: Behavior | None,
    calls: list[str],
    on_stopped: Behavior,
    stopped: list[bytes],
    is_stranger: bool,
) -> int:
    async def handle(request: web.Request) -> web.StreamResponse:
        calls.append(name)
        assert behavior is not None
        return await behavior(request)

    async def note(request: web.Request) -> web.StreamResponse:
        stopped.append(await request.read())
        return await on_stopped(request)

    app = web.Application()
    app.router.add_post(GENERATE_PATH, handle)
    app.router.add_post(STOPPED_PATH, note)
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
