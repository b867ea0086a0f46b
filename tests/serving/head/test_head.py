"""A head without Ray: its answers during the start, and while a cell does not answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import aiohttp
import pytest
from aiohttp import web
from support import certificates
from support.keys import live, source

from macroserve.api.access_token import Audience
from macroserve.api.client import AdminClient, AdminError, Timeouts, admin_access
from macroserve.api.keys import KeyRing, Purpose
from macroserve.api.messages import HeadReport, InstanceIdentity
from macroserve.operator.apply.tls import Tls
from macroserve.serving.discovery import InstanceDiscovery
from macroserve.serving.head import server as head
from macroserve.serving.head.server import HeadOptions, HeadServer
from macroserve.serving.ray.cells import RayCells
from macroserve.serving.security.call_guard import guard
from macroserve.serving.security.tls import TlsSource

RING = KeyRing.derived(["admin"], [Purpose.ADMIN])
OPTIONS = HeadOptions(host="127.0.0.1", port=0, keys=source(), admin_token=lambda: "admin")


@dataclass
class Cells:
    """Cell schedulers that start as soon as the test allows."""

    named: tuple[str, ...] = ()
    may_run: asyncio.Event = field(default_factory=asyncio.Event)
    running: dict[str, str] = field(default_factory=dict)

    async def find(self) -> list[InstanceIdentity]:
        return [InstanceIdentity(f"of {cell}", "", cell) for cell in self.named]

    def start(self) -> None: ...

    def stop(self) -> None: ...

    async def deploy_cell(self, name: str) -> None:
        await self.may_run.wait()
        self.running[name] = "http://127.0.0.1:9"

    @property
    def cells(self) -> frozenset[str]:
        return frozenset(self.running)


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Cells:
    cells = Cells()

    async def cell_urls() -> Mapping[str, str]:
        return dict(cells.running)

    monkeypatch.setattr(head, "cell_urls", cell_urls)
    return cells


async def listens(port: int) -> None:
    """Wait until a server listens on the port."""
    async with asyncio.timeout(5):
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def starting(
    cells: Cells, served: TlsSource | None = None, tls: Tls | None = None
) -> AsyncIterator[tuple[AdminClient, asyncio.Task[None]]]:
    """Start a head, which listens once the context is entered; the task is done when the head is
    ready. `tls` is the operator's."""
    options = replace(OPTIONS, keys=replace(OPTIONS.keys, tls=served))
    server = HeadServer(cast(RayCells, cells), cast(InstanceDiscovery, cells), options)
    start = asyncio.create_task(server.start())
    await listens(server.port)
    async with aiohttp.ClientSession() as http:
        scheme = "https" if tls else "http"
        peer = tls.peer if tls else None
        endpoint = f"{scheme}://127.0.0.1:{server.port}"
        yield AdminClient(http, endpoint, admin_access(RING), peer), start
    cells.may_run.set()
    await start
    await server.stop()


async def test_head_until_all_its_cells_are_back_reports_none(cells: Cells) -> None:
    cells.named = "cell-0", "cell-1"
    cells.running["cell-0"] = "http://127.0.0.1:9"
    async with starting(cells) as (client, start):
        for ask in (client.head_report, client.load):
            with pytest.raises(AdminError, match=r"503.*starting"):
                await ask()
        with pytest.raises(AdminError, match=r"503.*starting"):
            await client.drain("cell-0", "instance-0")
        cells.may_run.set()
        await start
        assert await client.head_report() == HeadReport((), frozenset({"cell-0", "cell-1"}))


async def test_head_with_tls_answers_the_operator_by_its_name_alone(
    cells: Cells, tmp_path: Path
) -> None:
    served = certificates.source(tmp_path / "tls")
    authority = (tmp_path / "tls" / "ca.crt").read_text()
    tls = Tls.of(certificates.NAME, {"ca.crt": authority})
    async with starting(cells, served, tls) as (client, start):
        cells.may_run.set()
        await start
        assert await client.head_report() == HeadReport((), frozenset())
    certificates.source(tmp_path / "another")
    stranger = (tmp_path / "another" / "ca.crt").read_text()
    for name, trusted, reason in (
        ("other.default.macroserve.internal", authority, "Hostname mismatch"),
        (certificates.NAME, stranger, "unable to get local issuer"),
    ):
        wrong = Tls.of(name, {"ca.crt": trusted})
        async with starting(cells, served, wrong) as (client, _):
            with pytest.raises(AdminError, match=reason):
                await client.head_report()
    async with starting(cells, served) as (client, _):
        with pytest.raises(AdminError, match="does not answer"):
            await client.head_report()
    async with starting(cells, None, tls) as (client, _):
        with pytest.raises(AdminError, match="does not answer"):
            await client.head_report()


async def test_cell_that_takes_long_to_start_is_not_given_up(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "DEPLOY_TIMEOUT_S", 0.05)
    cells.named = ("cell-0",)
    async with starting(cells) as (client, start):
        await start
        assert (await client.head_report()).running == frozenset()
        cells.may_run.set()
        await asyncio.sleep(0)
        assert (await client.head_report()).running == {"cell-0"}


async def test_cell_that_hangs_is_left_out_in_time(cells: Cells) -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        raise AssertionError

    async def report(request: web.Request) -> web.Response:
        return web.json_response({"cell": {"name": "cell-0", "instances": []}, "instances": []})

    async def load(request: web.Request) -> web.Response:
        bucket = {"age_s": 0, "requests": 7, "prompt_tokens": 7, "output_tokens": 7}
        return web.json_response({"bucket_s": 10, "buckets": [bucket]})

    app = web.Application()
    app.add_routes([web.get("/report", report), web.get("/load", load)])
    app.add_routes([web.get(f"/{n}/{what}", hang) for n in "12" for what in ("report", "load")])
    guard(app, live(), lambda path: [Audience(Purpose.ORDERS, f"cell-{n}") for n in range(3)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    cells.running = {"cell-0": url, "cell-1": url + "/1", "cell-2": url + "/2"}
    async with starting(cells) as (client, start):
        await start
        async with asyncio.timeout(0.8 * Timeouts().report_s):
            told, summed = await asyncio.gather(client.head_report(), client.load())
    await runner.cleanup()
    assert [cell.cell.name for cell in told.cells] == ["cell-0"]
    assert told.running == {"cell-0", "cell-1", "cell-2"}
    assert [bucket.requests for bucket in summed.buckets] == [7]
