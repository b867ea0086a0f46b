"""Instances that drain or leave, and their requests."""

import asyncio
from pathlib import Path

import pytest
from support.emulated_world import expected_tokens, running, token_request
from support.keys import live

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.core.status import Pool
from macroserve.core.strategies import strategy
from macroserve.serving.cell.instance_connection import InstanceConnection
from macroserve.serving.cell.scheduler import CellScheduler
from macroserve.serving.security.calls import session, to

LP = Pool.LP
LP3 = {"cell-0": {"a": LP, "b": LP, "c": LP}}


def files(folder: Path) -> list[Path]:
    return [*folder.iterdir()]


async def test_draining_instance_finishes_what_runs_and_hands_back_what_waits() -> None:
    async with running(LP3, strategy="ecoserve") as world:
        requests = [token_request(f"r{i}", 60, 800) for i in range(40)]
        streams = [asyncio.create_task(world.tokens(r)) for r in requests]
        await asyncio.sleep(0.2)
        headers = to(Audience(Purpose.ORDERS, "cell-0"))
        async with session(live(), headers=headers) as http:
            order = {"name": "a", "draining": True}
            async with http.post(world.urls["cell-0"] + "/drain", json=order) as response:
                assert response.status == 200
        assert await asyncio.gather(*streams) == [expected_tokens(r) for r in requests]
        late = [token_request(f"late{i}", 5) for i in range(10)]
        await asyncio.gather(*(world.tokens(r) for r in late))

        async def is_drained() -> bool:
            status = await world.status("a")
            return status.draining and status.num_running + status.num_waiting == 0

        # Its last status may come after its last token.
        await world.until(is_drained)
        assert world.metric("macroserve_requests_total", outcome="ok") == 50


async def test_instance_that_leaves_finishes_what_runs_and_closes() -> None:
    async with running(LP3, strategy="ecoserve") as world:
        requests = [token_request(f"r{i}", 100, 400) for i in range(20)]
        streams = [asyncio.create_task(world.tokens(r)) for r in requests]

        async def runs() -> bool:
            return (await world.status("a")).num_running > 0

        await world.until(runs)
        leaving = world.instances.pop("a")
        late = [token_request(f"late{i}", 5) for i in range(10)]
        done = asyncio.create_task(leaving.leave())

        async def drains() -> bool:
            return (await world.status("a")).draining

        await world.until(drains)
        await asyncio.gather(*(world.tokens(r) for r in late))
        await done
        assert leaving.idle
        await leaving.stop()
        assert await asyncio.gather(*streams) == [expected_tokens(r) for r in requests]
        # It handed back what waited, and broke nothing off.
        assert world.metric("macroserve_reroutes_total", reason="broken") == 0

        async def is_gone() -> bool:
            return "a" not in world.directory.members

        await world.until(is_gone)


async def test_instance_that_does_not_obey_does_not_drain_and_gets_no_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(LP3) as world:
        cell = world.cells["cell-0"]

        async def draining() -> bool:
            return next(i.draining for i in cell.report().instances if i.name == "a")

        async def refuse(connection: InstanceConnection, verb: str, argument: object) -> None:
            assert connection.handle.name == "a"
            raise TimeoutError

        with monkeypatch.context() as patch, pytest.raises(TimeoutError):
            patch.setattr(InstanceConnection, "command", refuse)
            await cell.drain("a", True)
        assert not await draining()
        before = (await world.status("a")).finished
        await asyncio.gather(*(world.tokens(token_request(f"r{i}", 5)) for i in range(6)))
        assert (await world.status("a")).finished == before
        await cell.drain("a", True)
        await world.until(draining)


async def test_cell_scheduler_that_starts_takes_no_instance_for_draining() -> None:
    """A draining instance without requests is stopped, and a new scheduler does not yet know the
    requests."""
    async with running(LP3) as world:
        cell = CellScheduler(
            "cell-0", strategy(world.settings.strategy), world.settings.slo, live()
        )
        await cell.start([server.identity() for server in world.instances.values()])
        told = cell.report().instances
        await cell.stop()
        assert len(told) == 3 and not any(instance.draining for instance in told)


async def test_instance_whose_engine_dies_leaves_at_once() -> None:
    async with running(LP3) as world:
        streams = [asyncio.create_task(world.tokens(token_request(f"r{i}", 4000))) for i in "012"]

        async def runs() -> bool:
            return (await world.status("a")).num_running > 0

        await world.until(runs)
        dead = world.instances["a"]
        await world.token_servers["a"].stop_engine()
        async with asyncio.timeout(5):
            await dead.leave()
        assert not dead.healthy
        for stream in streams:
            stream.cancel()


async def test_instance_without_grace_leaves_anyway() -> None:
    async with running(LP3, strategy="vllm", grace_s=0.1) as world:
        requests = [token_request(f"r{i}", 800) for i in range(9)]
        streams = [asyncio.create_task(world.tokens(r)) for r in requests]

        async def runs() -> bool:
            return (await world.status("a")).num_running > 0

        await world.until(runs)
        leaving = world.instances.pop("a")
        await leaving.leave()
        world.token_servers["a"].kill()
        await leaving.stop()
        assert await asyncio.gather(*streams) == [expected_tokens(r) for r in requests]
        assert world.metric("macroserve_reroutes_total", reason="broken") > 0


async def test_instance_that_is_killed_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with running({"cell-0": {"a": LP}}) as world:
        await world.tokens(token_request("r", 5))
        assert files(tmp_path) == []
