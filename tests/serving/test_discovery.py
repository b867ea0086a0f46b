"""Ingresses discover cells, and cells discover instances, also after outages and moves."""

import asyncio
import time
from collections.abc import Mapping

import aiohttp
import pytest
from aiohttp import web
from support.emulated_world import World, expected_tokens, running, token_request
from support.keys import live, source

from macroserve.api.access_token import Audience
from macroserve.api.handle import verify
from macroserve.api.keys import Purpose
from macroserve.core.status import Pool
from macroserve.serving.cell.server import CellServer
from macroserve.serving.discovery import DnsInstances
from macroserve.serving.head.cells import CELLS_PATH, cells_of
from macroserve.serving.security.call_guard import guard
from macroserve.serving.security.calls import UnprovedError, session
from macroserve.serving.security.key_source import LiveKeys

LP = Pool.LP


def service(world: World, name: str) -> str:
    """``host:port`` of an instance, as a name that resolves to it."""
    handle = verify(world.instances[name].identity().handle, live().ring, time.time())
    return handle.control.removeprefix("http://")


async def test_instances_behind_names_are_found() -> None:
    async with running({"cell-0": {"a": LP}, "cell-1": {"b": LP}}) as world:
        services = [service(world, name) for name in "ab"]
        gone = "127.0.0.1:9"
        unknown = "no-such-service.invalid:8000"
        found = await DnsInstances((*services, gone, unknown), source()).find()
        assert {i.name: i.cell for i in found} == {"a": "cell-0", "b": "cell-1"}
        assert await DnsInstances(tuple(services), source("another")).find() == []


async def test_name_with_many_addresses_is_asked_at_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running({"cell-0": {"a": LP, "b": LP}}) as world:
        addresses = [service(world, name).split(":") for name in "ab"]

        async def getaddrinfo(host: str, port: str, **_: object) -> list[tuple]:
            assert (host, port) == ("llama-instances", "8000")
            return [(0, 0, 0, "", (ip, int(number))) for ip, number in addresses]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        found = await DnsInstances(("llama-instances:8000",), source()).find()
        assert {identity.name for identity in found} == {"a", "b"}


def test_secret_is_not_shown() -> None:
    assert "s3cret" not in repr(DnsInstances(("a:1",), source("s3cret")))


async def served(handler) -> tuple[web.AppRunner, str]:
    app = web.Application()
    app.add_routes([web.get(CELLS_PATH, handler)])
    guard(app, live(), lambda path: [Audience(Purpose.CELLS)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def told(url: str, keys: LiveKeys) -> Mapping[str, str]:
    async with session(keys) as http:
        return await cells_of(url, http)


async def test_head_tells_where_cells_are() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"cells": {"cell-0": "http://a:1"}})

    runner, url = await served(handler)
    try:
        assert await told(url, live()) == {"cell-0": "http://a:1"}
    finally:
        await runner.cleanup()


async def test_caller_with_other_keys_than_the_head_is_told_nothing() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"cells": {"cell-0": "http://a:1"}})

    runner, url = await served(handler)
    try:
        with pytest.raises(UnprovedError, match="401"):
            await told(url, live("another"))
    finally:
        await runner.cleanup()


async def test_head_that_starts_tells_ingresses_no_cells() -> None:
    async def handler(request: web.Request) -> web.Response:
        raise web.HTTPServiceUnavailable

    runner, url = await served(handler)
    try:
        with pytest.raises(aiohttp.ClientResponseError):
            await told(url, live())
    finally:
        await runner.cleanup()


async def tokens_come(world: World, count: int = 4) -> bool:
    requests = [token_request(f"r{i}", 10) for i in range(count)]
    results = await asyncio.gather(*(world.tokens(r) for r in requests))
    return results == [expected_tokens(r) for r in requests]


@pytest.mark.parametrize("error", [None, ConnectionError("no head")])
async def test_directory_without_cells_keeps_the_last_members(
    error: Exception | None,
) -> None:
    async with running({"cell-0": {"a": LP, "b": LP}}) as world:
        world.urls.clear()
        world.discovery_error = error
        await world.stop_cell("cell-0")
        await asyncio.sleep(1.2)  # a look at the cells that are not there
        assert set(world.directory.members) == {"a", "b"}
        assert await tokens_come(world)


async def test_cell_scheduler_that_listens_elsewhere_is_asked_there() -> None:
    async with running({"cell-0": {"a": LP, "b": LP}}) as world:
        old = world.cell_servers["cell-0"]
        # As with a head that came up on another node while the old one is not known to be dead.
        other = CellServer(world.cells["cell-0"], live())
        world.urls["cell-0"] = await other.start()

        async def is_asked() -> bool:
            return (other.num_ingresses, old.num_ingresses) == (1, 0)

        await world.until(is_asked)
        assert await tokens_come(world)
        world.cell_servers["cell-0"] = other
        await old.stop()
        assert await tokens_come(world)


async def test_directory_forgets_a_cell_that_is_gone() -> None:
    async with running({"cell-0": {"a": LP}, "cell-1": {"b": LP}}) as world:
        del world.urls["cell-1"]

        async def knows_a_alone() -> bool:
            return set(world.directory.members) == {"a"}

        await world.until(knows_a_alone)
        assert await tokens_come(world)
