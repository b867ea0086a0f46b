"""The path of a request through dispatcher, cell and instance, with failures of each."""

import asyncio
import time
from collections.abc import Callable

import aiohttp
import pytest
from support.emulated_world import World, adopt, expected_tokens, running, token_request
from support.keys import live
from support.route_queries import route_query

from macroserve.api import messages
from macroserve.api.access_token import Audience
from macroserve.api.handle import verify
from macroserve.api.keys import Purpose
from macroserve.core.status import Pool
from macroserve.engine.tokens import RefusedError
from macroserve.serving.cell.instance_connection import InstanceConnection
from macroserve.serving.cell.scheduler import CellScheduler
from macroserve.serving.security.calls import session, to

LP, HP = Pool.LP, Pool.HP
LP3 = {"cell-0": {"a": LP, "b": LP, "c": LP}}


def orders(cell: str) -> dict[str, str]:
    return to(Audience(Purpose.ORDERS, cell))


def members(cell: CellScheduler) -> set[str]:
    return set(cell.report().cell.instances)


async def idle(world: World) -> bool:
    """Return whether all blocks of every instance are free and nothing counts as in flight."""
    return all(
        each.idle and each.status.free_blocks == each.status.num_blocks for each in world.reports()
    )


async def test_requests_that_end_give_every_block_back() -> None:
    async with running(LP3) as world:
        requests = [token_request(f"r{i}", 10 + i, 20 + i) for i in range(30)]
        results = await asyncio.gather(*(world.tokens(r) for r in requests))
        assert results == [expected_tokens(r) for r in requests]
        await world.until(lambda: idle(world))
        assert world.metric("macroserve_requests_total", outcome="ok") == 30
        assert world.metric("macroserve_requests_in_flight") == 0
        assert world.metric("macroserve_reroutes_total", reason="broken") == 0


async def test_stream_whose_instance_dies_goes_on_elsewhere() -> None:
    async with running(LP3) as world:
        requests = [token_request(f"r{i}", 150) for i in range(12)]
        tasks = [asyncio.create_task(world.tokens(r)) for r in requests]

        async def all_decode() -> bool:
            statuses = [await world.status(n) for n in "abc"]
            return sum(s.num_decoding for s in statuses) == 12

        await world.until(all_decode)
        busy = max(world.reports(), key=lambda each: each.status.num_decoding).name
        world.crash(busy)
        assert await asyncio.gather(*tasks) == [expected_tokens(r) for r in requests]
        assert world.metric("macroserve_reroutes_total", reason="broken") > 0
        await world.until(lambda: idle(world))
        assert busy not in world.directory.members


async def test_instance_that_was_out_of_sight_comes_back() -> None:
    async with running(LP3) as world:
        cell = world.cells["cell-0"]
        world.instances["a"].cut_connections()

        async def sees(names: set[str]) -> bool:
            return members(cell) == names

        await world.until(lambda: sees({"b", "c"}))
        await world.until(lambda: sees({"a", "b", "c"}))
        requests = [token_request(f"r{i}", 10) for i in range(6)]
        assert await asyncio.gather(*(world.tokens(r) for r in requests)) == [
            expected_tokens(r) for r in requests
        ]


async def test_stream_under_a_grammar_whose_instance_dies_ends() -> None:
    async with running(LP3) as world:
        request = token_request("r", 200, sampling={"structured_outputs": {"regex": "a"}})
        task = asyncio.create_task(world.tokens(request))

        async def decodes() -> bool:
            return sum([(await world.status(n)).num_decoding for n in "abc"]) == 1

        await world.until(decodes)
        busy = next(each.name for each in world.reports() if each.status.num_decoding)
        await asyncio.sleep(0.1)
        world.crash(busy)
        with pytest.raises(RefusedError, match="structured output") as refusal:
            await task
        assert refusal.value.status == 503


async def test_client_that_leaves_frees_the_blocks() -> None:
    async with running(LP3) as world:
        tasks = [asyncio.create_task(world.tokens(token_request(f"r{i}", 4000))) for i in range(6)]

        async def six_decode() -> bool:
            return sum([(await world.status(n)).num_decoding for n in "abc"]) == 6

        await world.until(six_decode)
        for task in tasks:
            task.cancel()
        await world.until(lambda: idle(world), timeout_s=2)
        assert world.metric("macroserve_requests_total", outcome="cancelled") == 6


async def test_streams_without_a_cell_scheduler_go_on_and_start() -> None:
    async with running(LP3) as world:
        old = [token_request(f"old{i}", 150) for i in range(4)]
        streams = [asyncio.create_task(world.tokens(r)) for r in old]
        await asyncio.sleep(0.2)
        await world.stop_cell("cell-0")
        new = [token_request(f"new{i}", 20) for i in range(4)]
        assert await asyncio.gather(*(world.tokens(r) for r in new)) == [
            expected_tokens(r) for r in new
        ]
        assert world.metric("macroserve_route_decisions_total", reason="no_scheduler") == 4
        # Restarted, it knows its instances from what they say of themselves.
        cell = await world.add_cell("cell-0")
        assert members(cell) == {"a", "b", "c"}
        assert await asyncio.gather(*streams) == [expected_tokens(r) for r in old]
        await world.until(lambda: idle(world))


async def test_handle_that_moves_between_cells_breaks_no_stream() -> None:
    async with running({"cell-0": {"a": LP, "b": LP}, "cell-1": {"c": LP}}) as world:
        requests = [token_request(f"r{i}", 200) for i in range(20)]
        streams = [asyncio.create_task(world.tokens(r)) for r in requests]
        await asyncio.sleep(0.2)
        async with session(live()) as http:
            for source, target in [("cell-0", "cell-1"), ("cell-1", "cell-0")] * 5:
                url = world.urls[source] + "/release"
                async with http.post(url, json={"name": "a"}, headers=orders(source)) as response:
                    assert response.status == 200
                    handle = await response.read()
                async with http.post(
                    world.urls[target] + "/adopt", data=handle, headers=orders(target)
                ) as response:
                    assert response.status == 200
                assert "a" in members(world.cells[target])
                assert "a" not in members(world.cells[source])
        assert await asyncio.gather(*streams) == [expected_tokens(r) for r in requests]
        assert world.metric("macroserve_reroutes_total", reason="broken") == 0


@pytest.mark.usefixtures("patient")
async def test_load_asks_all_instances_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(LP3) as world:
        all_asked, command = asyncio.Barrier(3), InstanceConnection.command

        async def wait_for_all(connection: InstanceConnection, verb: str) -> object:
            await all_asked.wait()
            return await command(connection, verb)

        monkeypatch.setattr(InstanceConnection, "command", wait_for_all)
        assert (await world.cells["cell-0"].load()).coefficients


async def test_load_with_an_instance_that_does_not_answer_leaves_it_out() -> None:
    async with running({"cell-0": {"a": LP}}) as world:
        cell = world.cells["cell-0"]
        world.crash("a")
        assert (await cell.load()).coefficients is None


async def test_counts_of_a_cell_do_not_fall_when_an_instance_leaves() -> None:
    async with running(LP3, strategy="vllm") as world:
        cell = world.cells["cell-0"]
        requests = [token_request(f"r{i}", 5) for i in range(12)]
        await asyncio.gather(*(world.tokens(r) for r in requests))

        async def all_counted() -> bool:
            return cell.report().cell.finished == 12

        await world.until(all_counted)
        await cell.release("a")
        assert cell.report().cell.finished == 12
        assert 0 < cell.report().cell.attained <= 12
        assert cell.report().cell.prompt_tokens == 12 * requests[0].num_prompt_tokens


async def test_cell_with_work_is_busy() -> None:
    async with running({"cell-0": {"a": LP}}) as world:
        cell = world.cells["cell-0"]
        stream = asyncio.create_task(world.tokens(token_request("r", 300)))

        async def is_busy() -> bool:
            return cell.summary(()).utilization > 0.3

        await world.until(is_busy)
        await stream


async def test_streams_of_dead_instances_are_finished_by_the_next_one() -> None:
    async with running(LP3) as world:
        requests = [token_request(f"r{i}", 100) for i in range(6)]
        streams = [asyncio.create_task(world.tokens(r)) for r in requests]
        await asyncio.sleep(0.3)
        for name in "abc":
            world.crash(name)
        await asyncio.sleep(1)
        await adopt(world.cells["cell-0"], await world.add_instance("d"))
        assert await asyncio.gather(*streams) == [expected_tokens(r) for r in requests]


async def test_new_instance_takes_over_the_name_of_a_dead_one() -> None:
    async with running({"cell-0": {"a": LP}}) as world:
        cell = world.cells["cell-0"]
        world.crash("a")
        # At once: the old one's connection has not given up yet.
        await adopt(cell, await world.add_instance("a", incarnation=2))
        request = token_request("r")
        assert await world.tokens(request) == expected_tokens(request)


async def test_request_waits_for_the_first_instance() -> None:
    async with running({"cell-0": {}}) as world:
        request = token_request("r")
        stream = asyncio.create_task(world.tokens(request))
        identity = await world.add_instance("a")
        await adopt(world.cells["cell-0"], identity)
        assert await stream == expected_tokens(request)


async def test_refused_request_is_not_tried_again() -> None:
    async with running(LP3) as world:
        with pytest.raises(RefusedError, match="length") as refusal:
            await world.tokens(token_request("r", 10, 5000))
        assert refusal.value.status == 400
        await world.until(lambda: idle(world), timeout_s=12)


TWO_CELLS = {"cell-0": {"a": LP}, "cell-1": {"b": LP}}


@pytest.mark.parametrize(
    ("cells", "satisfied", "expected"),
    [
        (TWO_CELLS, {"cell-0", "cell-1"}, [("cell-0", False)]),
        (TWO_CELLS, {"cell-1"}, [("cell-0", False), ("cell-1", False)]),
        (TWO_CELLS, set(), [("cell-0", False), ("cell-1", False), ("cell-0", True)]),
        ({"cell-0": {"a": LP}}, set(), [("cell-0", True)]),  # who takes it in any case
    ],
)
async def test_directory_with_full_cells_asks_them_in_turn(
    cells: dict[str, dict[str, Pool]], satisfied: set[str], expected: list[tuple[str, bool]]
) -> None:
    asked = []

    def answers(cell: CellScheduler) -> Callable[[messages.RouteQuery], messages.RouteReply]:
        def route(query: messages.RouteQuery) -> messages.RouteReply:
            asked.append((cell.name, query.ignore_constraints))
            takes = query.ignore_constraints or cell.name in satisfied
            return messages.RouteReply(query.info.route_id, "x" if takes else None, 0.0)

        return route

    async with running(cells) as world:
        for cell in world.cells.values():
            cell.route = answers(cell)
        routed = await world.directory.route(route_query())
    assert asked == expected
    assert routed is not None and routed.cell == expected[-1][0]


async def test_requests_that_one_cell_cannot_take_go_to_the_other() -> None:
    async with running(TWO_CELLS) as world:
        requests = [token_request(f"r{i}", 30, 1000) for i in range(20)]
        await asyncio.gather(*(world.tokens(r) for r in requests))

        async def finished() -> list[int]:
            return [(await world.status(name)).finished for name in "ab"]

        async def all_counted() -> bool:
            return sum(await finished()) == 20

        await world.until(all_counted)
        assert min(await finished()) >= 5


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/adopt", b"{}", 400),
        ("/adopt", b'{"handle": "{}"}', 400),
        ("/adopt", b"not json", 400),
        ("/release", b'{"name": "nobody"}', 404),
        ("/pool", b'{"name": "a", "pool": "middle"}', 400),
        ("/drain", b'{"name": "nobody", "draining": true}', 404),
        ("/nothing", b"{}", 404),
    ],
)
async def test_orders_that_are_invalid_change_nothing(path: str, body: bytes, status: int) -> None:
    async with running({"cell-0": {"a": LP}}) as world:
        url = f"{world.urls['cell-0']}{path}"
        async with (
            session(live()) as http,
            http.post(url, data=body, headers=orders("cell-0")) as response,
        ):
            assert response.status == status
        async with aiohttp.ClientSession() as http:
            async with http.post(url, data=body) as response:
                assert response.status == 401
            address = world.directory.members["a"].address
            async with http.get(address + "/macroserve/status") as response:
                assert response.status == 401
            identity = world.instances["a"].identity()
            control = verify(identity.handle, live().ring, time.time()).control
            async with http.get(control + "/macroserve/status") as response:
                assert response.status == 401
            async with http.get(control + "/health") as response:
                assert response.status == 200
        request = token_request("r")
        assert await world.tokens(request) == expected_tokens(request)
