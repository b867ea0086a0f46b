"""Requests are refused when queues are too long, with a time to retry."""

import asyncio

import pytest
from support.emulated_world import running, token_request
from support.slo_classes import BATCH

from macroserve.core.request import Slo
from macroserve.core.status import Pool
from macroserve.engine.tokens import RefusedError
from macroserve.serving.ingress.request_targets import in_class

LP, HP = Pool.LP, Pool.HP
LP3 = {"cell-0": {"a": LP, "b": LP, "c": LP}}


async def test_overload_is_refused_before_it_is_accepted() -> None:
    cells = {"cell-0": {"a": LP}}
    async with running(cells, slo=Slo(0.2, 0.1), drop_late=True) as world:
        world.dispatcher.admit()
        flood = [
            asyncio.create_task(world.tokens(token_request(f"r{i}", 2, 2000))) for i in range(60)
        ]

        async def late() -> bool:
            return world.directory.is_late(0.2)

        await world.until(late)
        with pytest.raises(RefusedError) as refusal:
            world.dispatcher.admit()
        assert refusal.value.status == 429
        with in_class(BATCH):
            world.dispatcher.admit()  # it has 30 s
        outcomes = await asyncio.gather(*flood, return_exceptions=True)
        dropped = [o for o in outcomes if isinstance(o, RefusedError)]
        assert dropped and all(refusal.status == 429 for refusal in dropped)
        assert len(dropped) < len(outcomes)

        async def calm() -> bool:
            return not world.directory.is_late(0.2)

        await world.until(calm)
        world.dispatcher.admit()


async def test_backlog_of_batch_requests_refuses_no_request_that_goes_before_it() -> None:
    cells = {"cell-0": {"a": LP}}
    async with running(cells, slo=Slo(0.2, 0.1), drop_late=True, max_queue_wait_s=0.5) as world:
        with in_class(BATCH):
            flood = [
                asyncio.create_task(world.tokens(token_request(f"r{i}", 2, 2000)))
                for i in range(60)
            ]

        async def is_long() -> bool:
            directory = world.directory
            before_s = directory.queue_wait_s(0.2) or 0.0
            return (directory.queue_wait_s(30.0) or 0.0) > 0.5 > before_s

        await world.until(is_long)
        world.dispatcher.admit()
        with in_class(BATCH), pytest.raises(RefusedError, match="maxQueueWait"):
            world.dispatcher.admit()
        assert [len(tokens) for tokens in await asyncio.gather(*flood)] == [2] * 60


async def test_request_that_would_begin_too_late_is_refused_until_the_queue_is_shorter() -> None:
    async with running({"cell-0": {"a": LP}}, max_queue_wait_s=0.5) as world:
        assert world.dispatcher.retry_after_s() == 1
        flood = [
            asyncio.create_task(world.tokens(token_request(f"r{i}", 2, 2000))) for i in range(60)
        ]

        async def is_long() -> bool:
            return (world.directory.queue_wait_s(1.0) or 0.0) > 0.5

        await world.until(is_long)
        with pytest.raises(RefusedError, match="maxQueueWait") as refusal:
            world.dispatcher.admit()
        assert refusal.value.status == 429
        # Accepted requests are served.
        assert [len(tokens) for tokens in await asyncio.gather(*flood)] == [2] * 60

        async def is_short() -> bool:
            return (world.directory.queue_wait_s(1.0) or 0.0) < 0.5

        await world.until(is_short)
        world.dispatcher.admit()

        async def is_reported() -> bool:
            return world.cells["cell-0"].report().recent_refused == {"queue_wait": 1}

        await world.until(is_reported)


async def test_refusals_of_an_ingress_are_reported_once_by_the_first_cell() -> None:
    async with running({"cell-2": {"a": LP}, "cell-10": {"b": LP}}) as world:

        async def reported() -> bool:
            return bool(world.cells["cell-2"].report().recent_refused)

        world.directory.note_refused("late")
        world.directory.note_refused("late")
        await world.until(reported)
        world.directory.note_refused("queue_wait")

        async def reported_again() -> bool:
            return len(world.cells["cell-2"].report().recent_refused) == 2

        await world.until(reported_again)
        assert world.cells["cell-2"].report().recent_refused == {"late": 2, "queue_wait": 1}
        assert world.cells["cell-10"].report().recent_refused == {}


async def test_retry_after_without_an_instance_is_10_to_15_seconds() -> None:
    async with running({"cell-0": {}}) as world:
        assert world.directory.queue_wait_s(1.0) is None
        world.dispatcher.admit()
        assert 10 <= world.dispatcher.retry_after_s() <= 15
