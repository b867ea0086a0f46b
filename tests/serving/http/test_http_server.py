"""The HTTP server waits for its stop without polling."""

import asyncio

import pytest
from starlette.applications import Starlette

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
