"""HP instances, where there are any, take requests that LP instances cannot serve in time."""

import asyncio

import aiohttp
import pytest
from support.emulated_world import World, expected_tokens, running, token_request

from macroserve.core.batch import HandBackReason
from macroserve.core.request import Slo
from macroserve.core.status import Pool
from macroserve.serving.cell.instance_connection import InstanceConnection

LP, HP = Pool.LP, Pool.HP


async def all_may_offload(world: World) -> bool:
    return all(tokens.may_offload for tokens in world.token_servers.values())


async def send_until_some_are_offloaded(world: World) -> int:
    """Send requests until some are offloaded, and return how many were sent. 30 long prompts at
    once are more than LP instances can give a first token within 1 s, but one pause of a busy
    machine makes all of them late, and late requests are not offloaded: so more are sent."""
    await world.until(lambda: all_may_offload(world))
    for wave in range(1, 6):
        requests = [token_request(f"r{wave}-{i}", 2, 1500) for i in range(30)]
        results = await asyncio.gather(*(world.tokens(r) for r in requests))
        assert results == [expected_tokens(r) for r in requests]
        if world.metric("macroserve_reroutes_total", reason=HandBackReason.OFFLOAD):
            return 30 * wave
    raise AssertionError("nothing was offloaded")


async def test_request_that_lp_cannot_serve_in_time_goes_to_hp() -> None:
    cells = {"cell-0": {"a": LP, "h": HP}}
    async with running(cells, slo=Slo(1.0, 0.1), strategy="ascendra") as world:
        await send_until_some_are_offloaded(world)
        assert world.metric("macroserve_route_decisions_total", reason="urgent") > 0


async def test_lp_instances_without_an_hp_instance_offload_nothing() -> None:
    cells = {"cell-0": {"a": LP, "b": LP}}
    async with running(cells, slo=Slo(1.0, 0.1), strategy="ascendra") as world:
        requests = [token_request(f"r{i}", 2, 1500) for i in range(40)]
        results = await asyncio.gather(*(world.tokens(r) for r in requests))
        assert results == [expected_tokens(r) for r in requests]
        assert world.metric("macroserve_reroutes_total", reason=HandBackReason.OFFLOAD) == 0


@pytest.mark.usefixtures("patient")
async def test_load_of_offloaded_requests_counts_each_once() -> None:
    # LP instances hand some of the requests over to HP: those are no new ones.
    cells = {"cell-0": {"a": LP, "h": HP}, "cell-1": {"b": LP, "i": HP}}
    async with running(cells, slo=Slo(1.0, 0.1), strategy="ascendra") as world:
        num_requests = await send_until_some_are_offloaded(world)
        reports = [await cell.load() for cell in world.cells.values()]
        lengths = [length for report in reports for length in report.lengths]
        assert lengths == [(1500, 2)] * num_requests
        assert all(report.model and len(report.coefficients or ()) == 5 for report in reports)


async def test_instance_that_comes_back_is_allowed_to_offload_again() -> None:
    async with running({"cell-0": {"a": LP, "h": HP}}, strategy="ascendra") as world:
        await world.until(lambda: all_may_offload(world))
        # As a process that was started anew.
        await world.token_servers["a"].command("let_offload", False)
        world.instances["a"].cut_connections()
        await world.until(lambda: all_may_offload(world))


async def test_instance_that_refused_the_permission_gets_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command, orders = InstanceConnection.command, []

    async def fails_at_first(
        connection: InstanceConnection, verb: str, argument: bool | None = None
    ) -> object:
        orders.append((connection.handle.name, verb, argument))
        if orders.count(orders[-1]) == 1:
            raise aiohttp.ClientConnectionError
        return await command(connection, verb, argument)

    monkeypatch.setattr(InstanceConnection, "command", fails_at_first)
    async with running({"cell-0": {"a": LP, "h": HP}}, strategy="ascendra") as world:
        await world.until(lambda: all_may_offload(world))
        assert orders.count(("a", "let_offload", True)) == 2
