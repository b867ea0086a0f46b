"""TLS between components, with real sockets: accepted servers, and reloaded files."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from support import certificates, keys
from support.log_lines import log_lines

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.serving.http.server import HttpServer, bound
from macroserve.serving.security import tls
from macroserve.serving.security.call_guard import CallGuard, guard
from macroserve.serving.security.calls import session, to
from macroserve.serving.security.key_source import LiveKeys
from macroserve.serving.security.reloaded import RELOAD_S
from macroserve.serving.security.tls import LiveTls, TlsError, TlsSource, base_url

A = Audience(Purpose.ORDERS, "cell-0")
TIMEOUT = aiohttp.ClientTimeout(total=10)


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "logged_at", {})


@pytest.fixture
def source(tmp_path: Path) -> TlsSource:
    return certificates.source(tmp_path / "tls")


class Clock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def live(source: TlsSource | None, clock: Callable[[], float] = time.monotonic) -> LiveKeys:
    return LiveKeys(replace(keys.source(), tls=source), clock)


@asynccontextmanager
async def asgi_part(held: LiveKeys) -> AsyncIterator[str]:
    async def page(request: Request) -> Response:
        return PlainTextResponse("well")

    app = Starlette(routes=[Route("/page", page)])
    server = HttpServer(CallGuard(app, held, lambda _: (A,)), 1, tls=held.tls)
    sock = bound("127.0.0.1", 0)
    await server.start(sock)
    yield base_url(held.tls, "127.0.0.1", sock.getsockname()[1])
    await server.stop()


@asynccontextmanager
async def aiohttp_part(held: LiveKeys) -> AsyncIterator[str]:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text="well")

    app = web.Application()
    guard(app, held, lambda _: (A,))
    app.router.add_get("/page", page)
    runner = web.AppRunner(app)
    await runner.setup()
    context = held.tls.server if held.tls else None
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield base_url(held.tls, "127.0.0.1", runner.addresses[0][1])
    await runner.cleanup()


PARTS = pytest.mark.parametrize("part", [asgi_part, aiohttp_part])


async def answer(url: str, caller: LiveKeys) -> str:
    async with (
        session(caller, timeout=TIMEOUT) as http,
        http.get(url + "/page", headers=to(A)) as response,
    ):
        return await response.text()


@PARTS
async def test_call_to_an_address_is_taken_by_the_name_of_the_certificate(part, source) -> None:
    async with part(live(source)) as url:
        assert url.startswith("https://127.0.0.1:")
        assert await answer(url, live(source)) == "well"


def failed_handshakes(caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Return the reasons of failed handshakes by peer."""
    lines = log_lines(caplog, tls.__name__)
    return {line["peer"]: line["reason"] for line in lines if line["event"].startswith("TLS")}


@PARTS
@pytest.mark.parametrize(
    ("called", "reason"),
    [
        ({}, "unable to get local issuer certificate"),
        ({"name": "other.default.macroserve.internal"}, "unable to get local issuer certificate"),
        ({"now": datetime.now(UTC) - timedelta(days=91)}, "unable to get local issuer"),
    ],
)
async def test_certificate_of_another_authority_is_not_taken(
    part, source, called, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = certificates.source(tmp_path / "other", **called)
    async with part(live(other)) as url:
        with pytest.raises(aiohttp.ClientConnectorError):
            await answer(url, live(source))
    failures = failed_handshakes(caplog)
    assert failures[url.removeprefix("https://")].startswith("certificate rejected: ")
    assert any(reason in found for found in failures.values())


@PARTS
@pytest.mark.parametrize(
    ("name", "made", "reason"),
    [
        ("other.default.macroserve.internal", timedelta(), "Hostname mismatch"),
        (certificates.NAME, timedelta(days=91), "certificate has expired"),
        (certificates.NAME, timedelta(days=-1), "certificate is not yet valid"),
    ],
)
async def test_another_name_or_time_is_not_taken_though_its_authority_is(
    part, name: str, made: timedelta, reason: str, tmp_path: Path, caplog
) -> None:
    called = certificates.source(tmp_path / "tls", name, datetime.now(UTC) - made)
    async with part(live(called)) as url:
        with pytest.raises(aiohttp.ClientConnectorError):
            await answer(url, live(TlsSource(called.folder, certificates.NAME)))
    assert any(reason in found for found in failed_handshakes(caplog).values())


@PARTS
async def test_plain_server_is_not_talked_to(part, source, caplog) -> None:
    async with part(live(None)) as url:
        with pytest.raises(aiohttp.ClientError):
            await answer(url.replace("http:", "https:"), live(source))
    failures = failed_handshakes(caplog)
    assert failures[url.removeprefix("http://")] == "peer does not speak TLS"


@PARTS
async def test_plain_caller_gets_nothing_and_the_log_says_why_once(part, source, caplog) -> None:
    async with part(live(source)) as url:
        for _ in range(3):
            with pytest.raises(aiohttp.ClientError):
                await answer(url.replace("https:", "http:"), live(None))
    [line] = log_lines(caplog, tls.__name__)
    assert (line["peer"], line["reason"]) == ("caller", "peer speaks plain HTTP")


@PARTS
async def test_caller_that_only_looks_for_a_listener_is_not_logged(part, source, caplog) -> None:
    async with part(live(source)) as url:
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))).close()
        assert await answer(url, live(source)) == "well"
    assert not failed_handshakes(caplog)


@PARTS
async def test_caller_without_the_authority_is_logged(part, source, caplog) -> None:
    async with part(live(source)) as url:
        with pytest.raises(aiohttp.ClientConnectorError):
            await answer(url, live(None))
    assert any(
        found.startswith("certificate rejected: ") for found in failed_handshakes(caplog).values()
    )


@PARTS
async def test_older_tls_than_1_3_is_refused(part, source) -> None:
    async with part(live(source)) as url:
        context = ssl.create_default_context(cafile=f"{source.folder}/ca.crt")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", url.rpartition(":")[2], ssl=context)


async def shown(url: str, source: TlsSource) -> bytes:
    """Return the certificate of a server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    port = int(url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return certificate


@PARTS
async def test_new_certificate_and_authority_are_taken_over_without_a_restart(part, source) -> None:
    called_clock, caller_clock = Clock(), Clock()
    called, caller = live(source, called_clock), live(source, caller_clock)
    async with part(called) as url, session(caller, timeout=TIMEOUT) as http:
        before = await shown(url, source)
        # All is new: the authority, too, which the former one does not vouch for.
        certificates.source(Path(source.folder))
        called_clock.now_s += RELOAD_S
        assert await shown(url, source) != before
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(url + "/page", headers=to(A))
        caller_clock.now_s += RELOAD_S
        async with http.get(url + "/page", headers=to(A)) as response:
            assert await response.text() == "well"


async def test_tls_files_that_became_unusable_are_logged_once_and_the_former_hold(
    source, caplog
) -> None:
    clock = Clock()
    held, file = live(source, clock), Path(source.folder, "tls.crt")
    async with asgi_part(held) as url:
        await asyncio.to_thread(file.write_text, "nonsense")
        for _ in range(3):
            clock.now_s += RELOAD_S
            assert await answer(url, held) == "well"
    [line] = [line for line in log_lines(caplog) if line["event"] == "credentials not reloaded"]
    assert (line["credentials"], line["level"]) == ("certificate", "error")
    assert source.folder in line["reason"]


@pytest.mark.parametrize("file", ["tls.crt", "tls.key", "ca.crt"])
@pytest.mark.parametrize("text", [None, "", "nonsense"])
def test_tls_files_that_cannot_be_used_at_the_start_are_named(source, file: str, text) -> None:
    path = Path(source.folder, file)
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(TlsError, match=source.folder):
        LiveTls(source)


def test_key_of_another_certificate_cannot_be_used(source, tmp_path: Path) -> None:
    other = certificates.source(tmp_path / "other")
    Path(source.folder, "tls.key").write_bytes(Path(other.folder, "tls.key").read_bytes())
    with pytest.raises(TlsError, match="key values mismatch"):
        LiveTls(source)


def test_log_of_refused_handshakes_is_bounded_in_memory() -> None:
    for number in range(1000):
        tls.log_failed_handshake(f"10.0.0.{number}", ssl.SSLError(1, "broken"))
    assert len(tls.logged_at) <= tls.MAX_LOGGED
