"""The report of a cell tells what its instances told."""

from dataclasses import replace

from support.emulated_world import SETTINGS, running, token_request

from macroserve.core.status import Pool


async def test_report_of_a_cell_has_the_last_minutes_hits_and_the_engines_decision() -> None:
    async with running({"cell-0": {"a": Pool.LP}}) as world:
        for name in ("first", "again"):
            await world.tokens(replace(token_request(name, 5, 100), options={}))

        async def counted() -> bool:
            return world.cells["cell-0"].report().cell.finished == 2

        await world.until(counted)
        report = world.cells["cell-0"].report()
        num_shared = 100 - 100 % SETTINGS.small.block_size
        assert (report.cell.prompt_tokens, report.cell.cached_tokens) == (200, num_shared)
        assert (report.recent_prompt_tokens, report.recent_cached_tokens) == (200, num_shared)
        (instance,) = report.instances
        assert instance.prefix_caching == "on: prompts share the blocks of a common beginning"
