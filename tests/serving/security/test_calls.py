"""Calls between components: admitted calls, and accepted answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from support.keys import live

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.serving.http.server import HttpServer, bound
from macroserve.serving.security.call_guard import CallGuard, guard
from macroserve.serving.security.calls import PROOF_HEADER, UnprovedError, session, to
from macroserve.serving.security.key_source import KeySource, LiveKeys

A = Audience(Purpose.ORDERS, "cell-0")


def audiences(path: str) -> tuple[Audience, ...] | None:
    return None if path == "/open" else (A,)


@asynccontextmanager
async def aiohttp_part(keys: LiveKeys) -> AsyncIterator[str]:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text="well")

    async def socket(request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse()
        await response.prepare(request)
        await response.send_str("well")
        return response

    async def broken(request: web.Request) -> web.Response:
        raise RuntimeError

    app = web.Application()
    guard(app, keys, audiences)
    app.router.add_get("/page", page)
    app.router.add_get("/open", page)
    app.router.add_get("/socket", socket)
    app.router.add_get("/broken", broken)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@asynccontextmanager
async def asgi_part(keys: LiveKeys) -> AsyncIterator[str]:
    async def page(request: Request) -> Response:
        return PlainTextResponse("well")

    async def broken(request: Request) -> Response:
        raise RuntimeError

    app = Starlette(
        routes=[Route("/page", page), Route("/open", page), Route("/broken", broken)],
    )
    server = HttpServer(CallGuard(app, keys, audiences), 1)
    sock = bound("127.0.0.1", 0)
    await server.start(sock)
    yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    await server.stop()


PARTS = pytest.mark.parametrize("part", [aiohttp_part, asgi_part])


@PARTS
@pytest.mark.parametrize(("path", "status"), [("/page", 200), ("/none", 404), ("/broken", 500)])
async def test_response_to_a_call_with_the_right_token_is_proved(
    part, path: str, status: int
) -> None:
    async with (
        part(live()) as url,
        session(live()) as http,
        http.get(url + path, headers=to(A)) as response,
    ):
        assert response.status == status


@PARTS
@pytest.mark.parametrize(
    ("keys", "audience"),
    [
        (live("another"), A),
        (live(), Audience(Purpose.ORDERS, "cell-1")),
        (live(), Audience(Purpose.ROUTING, "cell-0")),
    ],
)
async def test_call_with_another_token_is_refused_and_nothing_is_proved(
    part, keys: LiveKeys, audience: Audience
) -> None:
    async with part(live()) as url, session(keys) as http:
        for path in ("/page", "/none"):
            with pytest.raises(UnprovedError, match="HTTP 401"):
                await http.get(url + path, headers=to(audience))


@PARTS
async def test_call_without_a_token_reaches_only_what_is_open(part) -> None:
    async with part(live()) as url, aiohttp.ClientSession() as http:
        for path, status in (("/page", 401), ("/none", 401), ("/open", 200)):
            async with http.get(url + path) as response:
                assert response.status == status
                assert PROOF_HEADER not in response.headers


@PARTS
async def test_secret_and_its_keys_never_travel(part) -> None:
    heard: list[str] = []
    keys = live()

    async def note(_: object, __: object, params: aiohttp.TraceRequestHeadersSentParams) -> None:
        heard.extend(f"{name}: {value}" for name, value in params.headers.items())

    tracing = aiohttp.TraceConfig()
    tracing.on_request_headers_sent.append(note)
    async with (
        part(keys) as url,
        session(keys, trace_configs=[tracing]) as http,
        http.get(url + "/page", headers=to(A)) as response,
    ):
        heard.extend(response.headers.values())
    said = "\n".join(heard)
    assert "Authorization: Bearer " in said and "X-Macroserve-Audience" not in said
    assert "the secret" not in said
    assert not any(key.decode() in said for purpose in Purpose for key in keys.ring.of(purpose))


async def test_web_socket_is_proved_before_it_is_used() -> None:
    async with aiohttp_part(live()) as url:
        async with session(live()) as http, http.ws_connect(url + "/socket", headers=to(A)) as ws:
            assert await ws.receive_str() == "well"
        async with session(live("another")) as http:
            with pytest.raises(UnprovedError):
                await http.ws_connect(url + "/socket", headers=to(A))


@PARTS
@pytest.mark.parametrize(
    ("caller", "called"), [("new", "new\nold"), ("old", "new\nold"), ("new\nold", "old")]
)
async def test_calls_during_a_rotation_need_one_key_in_common(
    part, caller: str, called: str, tmp_path: Path
) -> None:
    def keys(name: str, text: str) -> LiveKeys:
        (tmp_path / name).mkdir()
        (tmp_path / name / "secret").write_text(text)
        return LiveKeys(KeySource(tuple(Purpose), str(tmp_path / name)))

    async with (
        part(keys("called", called)) as url,
        session(keys("caller", caller)) as http,
        http.get(url + "/page", headers=to(A)) as response,
    ):
        assert await response.text() == "well"
