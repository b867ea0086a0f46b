"""An HTTP connection is bounded: a tiny application runs on the real server over the loopback."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from starlette.types import Receive, Scope, Send

from macroserve.serving.http.errors import error_response
from macroserve.serving.http.protocol import HttpLimits
from macroserve.serving.http.server import HttpServer, bound

LIMITS = HttpLimits(
    max_connections=4,
    max_head_bytes=4096,
    max_headers=20,
    max_pending_bytes=8192,
    head_timeout_s=30,
    linger_s=30,
)
HASTY = replace(LIMITS, head_timeout_s=0.3, linger_s=0.3)
"""Short limits for the tests of time-outs."""
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """/slow streams for longer than a head may take, /refused reads no body, all others do."""
    match scope["path"]:
        case "/refused":
            await error_response(401, "no")(scope, receive, send)
        case "/slow":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(6):
                await asyncio.sleep(0.1)
                await send({"type": "http.response.body", "body": b"tick", "more_body": True})
            await send({"type": "http.response.body", "body": b"end"})
        case _:
            size = 0
            while (message := await receive()).get("more_body"):
                size += len(message["body"])
            size += len(message.get("body", b""))
            names = [name for name, _ in scope["headers"]]
            body = json.dumps({"size": size, "headers": len(names)}).encode()
            headers = [(b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def response(self) -> tuple[int, bytes]:
        """Return status and body of one response with a length."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        return int(head.split()[1]), await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        """Return all bytes until the server closes the connection, which must be soon."""
        async with asyncio.timeout(3):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


Case = Callable[[Callable[[], Awaitable[Client]]], Awaitable[None]]


def serve(case: Case, limits: HttpLimits = LIMITS) -> None:
    async def run() -> None:
        server = HttpServer(app, grace_s=1, limits=limits)
        listener = bound("127.0.0.1", 0)
        await server.start(listener)
        clients: list[Client] = []

        async def connect() -> Client:
            clients.append(Client(*await asyncio.open_connection(*listener.getsockname())))
            return clients[-1]

        try:
            async with asyncio.timeout(20):
                await case(connect)
        finally:
            for client in clients:
                client.writer.close()
            await server.stop()

    asyncio.run(run())


def assert_error(answer: tuple[int, bytes], status: int) -> None:
    assert answer[0] == status
    error = json.loads(answer[1])["error"]
    assert error["code"] == status and error["message"]


@pytest.mark.parametrize(
    "head",
    [
        GET + b"X: " + b"a" * 5000 + b"\r\n\r\n",
        GET + b"".join(b"X%d: %s\r\n" % (i, b"a" * 500) for i in range(10)) + b"\r\n",
        GET + b"".join(b"X%d: a\r\n" % i for i in range(30)) + b"\r\n",
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        GET + b"X: " + b"a" * 5000,
        b"GET /" + b"a" * 5000,
    ],
    ids=["value", "headers", "number", "path", "unfinished value", "unfinished path"],
)
def test_head_above_the_limit_is_refused_with_431(head: bytes) -> None:
    async def case(connect) -> None:
        client = await connect()
        client.send(head)
        assert_error(await client.response(), 431)
        assert await client.rest() == b""

    serve(case)


def test_head_in_many_pieces_counts_as_a_whole() -> None:
    async def case(connect) -> None:
        client = await connect()
        client.send(GET)
        for index in range(39):
            client.send(b"X%d: %s\r\n" % (index % 10, b"a" * 100))
            await asyncio.sleep(0.001)
        assert_error(await client.response(), 431)

    serve(case)


def test_trailers_and_chunk_extensions_are_bounded_and_never_become_headers() -> None:
    chunked = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def case(connect) -> None:
        client = await connect()
        client.send(chunked + b"3\r\nabc\r\n0\r\nAuthorization: late\r\n\r\n")
        status, body = await client.response()
        assert (status, json.loads(body)) == (200, {"size": 3, "headers": 2})
        for endless in (b"3\r\nabc\r\n0\r\nX: " + b"a" * 4000, b"3;" + b"a" * 4000):
            client = await connect()
            client.send(chunked + endless)
            for _ in range(5):
                await asyncio.sleep(0.02)
                client.send(b"a" * 2000)
            assert b" 431 " in await client.rest()

    serve(case)


@pytest.mark.parametrize("start", [b"", b"G", GET, b"\r\n", GET + b"X: a"])
def test_connection_without_a_whole_head_is_closed_in_time(start: bytes) -> None:
    async def case(connect) -> None:
        client = await connect()
        client.send(start)
        answer = await client.rest()
        assert answer == b"" or b" 408 " in answer

    serve(case, HASTY)


def test_head_that_trickles_is_closed_in_time() -> None:
    async def case(connect) -> None:
        client = await connect()
        client.send(GET)
        for _ in range(4):
            await asyncio.sleep(0.06)
            client.send(b"X: a\r\n")
        answer = await client.rest()
        assert answer == b"" or b" 408 " in answer

    serve(case, HASTY)


@pytest.mark.parametrize("stray", [b"\r\n", b"G"])
def test_bytes_after_a_response_do_not_hold_the_connection(stray: bytes) -> None:
    async def case(connect) -> None:
        client = await connect()
        client.send(GET + b"\r\n")
        assert (await client.response())[0] == 200
        client.send(stray)
        await client.rest()

    serve(case, HASTY)


def test_connection_is_kept_for_the_next_request() -> None:
    async def case(connect) -> None:
        client = await connect()
        for _ in range(3):
            client.send(GET + b"\r\n")
            assert (await client.response())[0] == 200
            await asyncio.sleep(2 * HASTY.head_timeout_s)

    serve(case, HASTY)


def test_response_may_take_longer_than_a_head() -> None:
    async def case(connect) -> None:
        client = await connect()
        client.send(b"GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n\r\n")
        assert b"end" in await client.rest()

    serve(case, HASTY)


def test_body_of_a_refused_request_is_thrown_away_for_a_while() -> None:
    refused = b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"

    async def case(connect) -> None:
        client = await connect()
        client.send(refused % 10)
        assert_error(await client.response(), 401)
        client.send(b"0123456789" + GET + b"\r\n")
        assert (await client.response())[0] == 200

    serve(case)


def test_connection_of_a_refused_body_that_goes_on_is_closed() -> None:
    async def case(connect) -> None:
        client = await connect()
        client.send(b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        assert_error(await client.response(), 401)
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(3):
                while not client.reader.at_eof():
                    client.send(b"a" * 1000)
                    await client.writer.drain()
                    await asyncio.sleep(0.05)
                raise ConnectionError

    serve(case, HASTY)


def test_connection_above_the_limit_is_refused_with_503() -> None:
    async def case(connect) -> None:
        kept = [await connect() for _ in range(LIMITS.max_connections)]
        for client in kept:
            client.send(GET + b"\r\n")
            assert (await client.response())[0] == 200
        assert_error(await (await connect()).response(), 503)
        kept[0].writer.close()
        await asyncio.sleep(0.1)
        client = await connect()
        client.send(GET + b"\r\n")
        assert (await client.response())[0] == 200

    serve(case)


def test_unfinished_heads_of_all_connections_are_bounded() -> None:
    async def case(connect) -> None:
        clients = [await connect() for _ in range(3)]
        for client in clients:
            client.send(GET + b"X: " + b"a" * 3000)
            await asyncio.sleep(0.05)
        assert_error(await clients[-1].response(), 503)
        clients[0].send(b"\r\n\r\n")
        assert (await clients[0].response())[0] == 200
        for client in clients:
            client.writer.close()
        await asyncio.sleep(0.1)
        client = await connect()
        client.send(GET + b"X: " + b"a" * 3000 + b"\r\n\r\n")
        assert (await client.response())[0] == 200

    serve(case)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\nb\r\n\r\n",
        "GET /\u00e9 HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    ],
)
def test_malformed_http_gets_400_in_openai_shape(data: bytes) -> None:
    async def case(connect) -> None:
        client = await connect()
        client.send(data)
        assert_error(await client.response(), 400)
        assert await client.rest() == b""

    serve(case)


def test_request_to_upgrade_is_answered_as_any_other() -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"

    async def case(connect) -> None:
        client = await connect()
        client.send(GET + upgrade + b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
        assert (await client.response())[0] == 200

    serve(case)
