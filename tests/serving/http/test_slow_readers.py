"""Clients that read slowly or not at all, with real sockets and both event loops."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from macroserve.serving.http.protocol import HttpLimits
from macroserve.serving.http.server import HttpServer, bound

TIMEOUT_S = 0.5
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
GET = b"GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n"


class Played:
    """A server whose streams record disconnected clients."""

    def __init__(self, write_timeout_s: float = TIMEOUT_S) -> None:
        routes = [Route("/endless", self._endless), Route("/rest", self._rest)]
        limits = HttpLimits(write_timeout_s=write_timeout_s)
        self.server = HttpServer(Starlette(routes=routes), grace_s=1, limits=limits)
        self.ended = asyncio.Event()

    async def _endless(self, _: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield bytes(1 << 20)
                    await asyncio.sleep(0)  # as between tokens
            finally:
                self.ended.set()

        return StreamingResponse(body())

    async def _rest(self, _: Request) -> StreamingResponse:
        """Send as much as the kernel buffers, and a little more."""

        async def body() -> AsyncIterator[bytes]:
            while not self.num_unwritten:
                yield bytes(1 << 14)
                await asyncio.sleep(0)
            assert self.num_unwritten < 1 << 16
            self.ended.set()

        return StreamingResponse(body())

    @property
    def connections(self) -> list[asyncio.Protocol]:
        return list(self.server.server_state.connections)

    @property
    def num_unwritten(self) -> int:
        (protocol,) = self.connections
        return protocol.transport.get_write_buffer_size()  # type: ignore[attr-defined]

    async def until_no_connection_is_left(self) -> None:
        async with asyncio.timeout(10 * TIMEOUT_S):
            while self.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


Case = Callable[[Played, socket.socket], Awaitable[None]]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Callable[..., None]:
    def run(case: Case, **options: float) -> None:
        async def go() -> None:
            played = Played(**options)
            listener = bound("127.0.0.1", 0)
            await played.server.start(listener)
            client = socket.socket()
            # So that little is on the way before the server has to wait.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            client.setblocking(False)
            try:
                async with asyncio.timeout(20):
                    loop = asyncio.get_running_loop()
                    await loop.sock_connect(client, listener.getsockname())
                    await case(played, client)
            finally:
                client.close()
                await played.server.stop()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(go())

    return run


def test_stream_that_nobody_reads_is_ended_and_its_connection_closed(play) -> None:
    async def case(played: Played, client: socket.socket) -> None:
        client.send(GET % (b"/endless", b""))
        async with asyncio.timeout(10 * TIMEOUT_S):
            await played.ended.wait()
        await played.until_no_connection_is_left()

    play(case)


def test_stream_that_is_read_slowly_goes_on(play) -> None:
    """The rate is one at which the kernel's buffer alone would not ask for more within the time."""

    async def case(played: Played, client: socket.socket) -> None:
        client.send(GET % (b"/endless", b""))
        loop = asyncio.get_running_loop()
        for _ in range(150):
            await asyncio.sleep(0.02)
            assert await loop.sock_recv(client, 1 << 13)
        assert not played.ended.is_set()
        assert len(played.connections) == 1

    play(case, write_timeout_s=1.0)


@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"], ids=["kept", "closed"])
def test_end_of_a_response_that_nobody_reads_does_not_hold_the_connection(
    play, header: bytes
) -> None:
    async def case(played: Played, client: socket.socket) -> None:
        client.send(GET % (b"/rest", header))
        async with asyncio.timeout(10 * TIMEOUT_S):
            await played.ended.wait()
        await played.until_no_connection_is_left()

    play(case)


def test_response_that_is_read_late_but_in_time_is_whole(play) -> None:
    async def case(played: Played, client: socket.socket) -> None:
        client.send(GET % (b"/rest", b"Connection: close\r\n"))
        await played.ended.wait()
        await asyncio.sleep(0.2)
        loop = asyncio.get_running_loop()
        answer = bytearray()
        while data := await loop.sock_recv(client, 1 << 20):
            answer += data
        assert answer.endswith(b"0\r\n\r\n")

    play(case, write_timeout_s=10.0)
