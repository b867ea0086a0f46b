"""The HTTP server waits for its stop without polling."""

import asyncio

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from macroserve.serving.http import server as http_server
from macroserve.serving.http.server import HttpServer, bound


async def test_server_that_should_exit_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "DATE_S", 3600.0)
    server = HttpServer(Starlette(), grace_s=1)
    await server.start(bound("127.0.0.1", 0))
    assert not server.should_exit
    server.should_exit = True  # as vLLM's handler of a dead engine does
    async with asyncio.timeout(30):
        await server.stop()
    assert not server.alive


async def test_server_renews_the_date_of_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "DATE_S", 0.001)
    server = HttpServer(Starlette(), grace_s=1)
    await server.start(bound("127.0.0.1", 0))
    server.server_state.default_headers = []
    async with asyncio.timeout(30):
        while not server.server_state.default_headers:  # noqa: ASYNC110 - uvicorn sets them
            await asyncio.sleep(0)
    await server.stop()


async def test_request_that_the_stop_cancels_is_logged_as_no_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    arrived = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        arrived.set()
        await asyncio.Event().wait()

    sock = bound("127.0.0.1", 0)
    server = HttpServer(endless, grace_s=0)
    await server.start(sock)
    async with aiohttp.ClientSession() as http, asyncio.timeout(30):
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        request = asyncio.create_task(http.get(url))
        await arrived.wait()
        await server.stop()
        assert (await request).status == 500
    assert not [record for record in caplog.records if record.exc_info]


async def test_request_that_fails_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("a fault")

    sock = bound("127.0.0.1", 0)
    server = HttpServer(failing, grace_s=0)
    await server.start(sock)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    async with asyncio.timeout(30), aiohttp.ClientSession() as http, http.get(url) as answer:
        assert answer.status == 500
    await server.stop()
    assert [record for record in caplog.records if record.exc_info]
