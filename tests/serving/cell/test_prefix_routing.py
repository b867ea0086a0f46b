"""A cell sends a prompt where its prefix is cached, and counts the remaining tokens."""

import asyncio
import logging
from typing import Any

import pytest
from support.emulated_world import World, running, token_request
from support.keys import live
from support.migration import migrate
from support.route_queries import route_query

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.core.status import Pool
from macroserve.serving.cell import scheduler
from macroserve.serving.cell.scheduler import CellScheduler
from macroserve.serving.security.calls import session, to

NUM_PROMPTS, PROMPT_TOKENS = 9, 700
THREE = {"cell-0": dict.fromkeys("abc", Pool.LP)}
TWO_CELLS = {"cell-0": {"a": Pool.LP}, "cell-1": {"b": Pool.LP}}
QUERY = route_query(num_prompt_tokens=PROMPT_TOKENS, prefix=bytes(range(54)))


async def ask(world: World, round_: int) -> None:
    """Ask for an answer to each prompt at once, in another order in each round."""
    requests = [
        token_request(f"{number}-{round_}", 4, PROMPT_TOKENS, cache_salt=str(number))
        for number in range(NUM_PROMPTS)
    ]
    order = [*requests[round_:], *requests[:round_]]
    await asyncio.gather(*(world.tokens(request) for request in order))


async def test_prompts_come_back_to_the_instance_that_has_their_beginning() -> None:
    async with running(THREE) as world:
        cell = world.cells["cell-0"]
        for round_ in range(4):
            await ask(world, round_)

        async def counted() -> bool:
            return cell.report().cell.finished == 4 * NUM_PROMPTS

        await world.until(counted)
        found = cell.report().cell
        # By load alone, a prompt would return to its instance one time in three.
        assert found.cached_tokens > 0.85 * found.prompt_tokens * 3 / 4
        busy = [each.status.finished for each in cell.report().instances]
        assert max(busy) <= 2 * min(busy)


async def test_load_of_prompts_that_come_back_is_what_is_left_to_compute() -> None:
    async with running(THREE) as world:
        for round_ in range(2):
            await ask(world, round_)
        lengths = [prompt for prompt, _ in (await world.cells["cell-0"].load()).lengths]
        assert lengths[:NUM_PROMPTS] == [PROMPT_TOKENS] * NUM_PROMPTS
        assert sorted(lengths[NUM_PROMPTS:])[NUM_PROMPTS // 2] < PROMPT_TOKENS - 0.9 * 640


async def order(world: World, cell: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = to(Audience(Purpose.ORDERS, cell))
    async with session(live()) as http:
        url = f"{world.urls[cell]}/{verb}"
        async with http.post(url, json=body, headers=headers) as response:
            assert response.status == 200
            return await response.json()


async def num_to_compute(cell: CellScheduler) -> int:
    """Route the prompt to an instance of the cell; return the tokens that it has to compute."""
    cell.settle(QUERY.info.route_id)
    assert cell.route(QUERY).instance
    return (await cell.load()).lengths[-1][0]


async def test_instance_that_moves_to_another_cell_is_known_there_for_what_it_has() -> None:
    async with running(TWO_CELLS) as world:
        first, second = world.cells.values()
        assert await num_to_compute(first) == PROMPT_TOKENS
        await migrate(world, "a", "cell-0", "cell-1")
        assert await num_to_compute(second) == PROMPT_TOKENS - 640
        await migrate(world, "a", "cell-1", "cell-0")
        assert await num_to_compute(first) == PROMPT_TOKENS - 640
        assert await num_to_compute(second) == PROMPT_TOKENS


@pytest.mark.parametrize(
    ("prefixes", "num_warnings"),
    [(None, 0), ("", 0), ("AAA", 1), ("/" * 28, 1), (7, 1), ([["AAAA"]], 1)],
    ids=["missing", "empty", "not base64", "unknown step", "number", "list"],
)
async def test_instance_that_moves_with_nothing_that_can_be_read_joins_all_the_same(
    prefixes: object, num_warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(TWO_CELLS) as world:
        first, second = world.cells.values()
        await num_to_compute(first)
        released = await order(world, "cell-0", "release", {"name": "a"})
        del released["prefixes"]
        if prefixes is not None:
            released["prefixes"] = prefixes
        with caplog.at_level(logging.WARNING):
            await order(world, "cell-1", "adopt", released)
        assert set(second.report().cell.instances) == {"a", "b"}
        assert await num_to_compute(second) == PROMPT_TOKENS
        warnings = [record for record in caplog.records if record.name == scheduler.__name__]
        assert [record.__dict__["instance"] for record in warnings] == ["a"] * num_warnings
