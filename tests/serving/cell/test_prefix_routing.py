"""A cell sends a prompt where its beginning is cached, and counts what is left to compute."""

import asyncio
from dataclasses import replace

from support.emulated_world import World, running, token_request

from macroserve.core.status import Pool

NUM_PROMPTS, PROMPT_TOKENS = 9, 700
THREE = {"cell-0": dict.fromkeys("abc", Pool.LP)}


async def ask(world: World, round_: int) -> None:
    """Ask for an answer to each prompt at once, in another order in each round."""
    requests = [
        replace(
            token_request(f"{number}-{round_}", 4, PROMPT_TOKENS),
            options={"cache_salt": str(number)},
        )
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
        # Where they go by load, a prompt comes back to its instance one time in three.
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
