"""The report of a cell contains its instances' statuses."""

from pathlib import Path

import pytest
from support.emulated_world import SETTINGS, adopt, running, token_request
from support.route_queries import route_query
from support.slo_classes import BATCH

from macroserve.core.status import Ended, Pool
from macroserve.serving.ingress.request_targets import in_class
from macroserve.serving.instance.start import CacheWatch, process_age_s


async def test_report_of_a_cell_has_the_last_minutes_hits_and_the_engines_decision() -> None:
    async with running({"cell-0": {"a": Pool.LP}}) as world:
        for name in ("first", "again"):
            await world.tokens(token_request(name, 5, 100, cache_salt=None))

        async def counted() -> bool:
            return world.cells["cell-0"].report().cell.finished == 2

        await world.until(counted)
        report = world.cells["cell-0"].report()
        num_shared = 100 - 100 % SETTINGS.small.block_size
        assert (report.cell.prompt_tokens, report.cell.cached_tokens) == (200, num_shared)
        assert (report.recent_prompt_tokens, report.recent_cached_tokens) == (200, num_shared)
        (instance,) = report.instances
        assert instance.prefix_caching == "on: prompts share the blocks of a common prefix"


async def test_report_of_a_cell_has_the_last_minutes_refusals() -> None:
    async with running({"cell-0": {"a": Pool.LP}}) as world:
        cell = world.cells["cell-0"]

        async def free() -> bool:
            return cell.route(route_query(route_id="taken")).instance == "a"

        await world.until(free)
        assert cell.report().recent_refused.get("ttft") is None
        cell._history.clear()
        cell._history.append((cell.report().cell, {"no_instance": 0}))  # as of a minute ago
        for _ in range(3):
            assert cell.route(route_query(exclude=("a",))).instance is None
        assert cell.report().recent_refused == {"no_instance": 3}
        cell._history.append((cell.report().cell, {"no_instance": 2}))
        cell._history.popleft()
        assert cell.report().recent_refused == {"no_instance": 1}
        cell._history[0] = (cell.report().cell, {"no_instance": 3})
        assert cell.report().recent_refused == {}, "of more than a minute ago"


async def test_report_of_a_cell_has_what_ended_by_class() -> None:
    async with running({"cell-0": {"a": Pool.LP}}) as world:
        cell = world.cells["cell-0"]

        async def serve(num_in_all: int) -> None:
            with in_class(BATCH):
                await world.tokens(token_request(f"batch-{num_in_all}", 5, 100))
            await world.tokens(token_request(f"default-{num_in_all}", 5, 100))

            async def counted() -> bool:
                return cell.report().cell.finished == num_in_all

            await world.until(counted)

        await serve(2)
        report = cell.report()
        assert report.recent_by_class == report.cell.ended_by_class == {"batch": Ended(1, 1)}
        assert sorted((await cell.load()).classes) == ["batch", "default"]
        cell._history.clear()
        cell._history.append((report.cell, {}))  # as of a minute ago
        await serve(4)
        assert cell.report().recent_by_class == {"batch": Ended(1, 1)}
        assert cell.report().cell.ended_by_class == {"batch": Ended(2, 2)}


async def test_report_of_a_cell_counts_no_probe() -> None:
    async with running({"cell-0": {"a": Pool.LP}}) as world:
        cell = world.cells["cell-0"]
        with in_class(BATCH):
            await world.tokens(token_request("probe", probe=True))
        await world.tokens(token_request("of-a-client"))

        async def counted() -> bool:
            return cell.report().cell.finished > 0

        await world.until(counted)
        ended = cell.report().cell
        assert (ended.finished, ended.ended_by_class) == (1, {})
        assert len((await cell.load()).lengths) == 1


@pytest.mark.parametrize("fetched", [False, True])
async def test_report_of_a_cell_has_the_start_that_an_instance_measured(
    tmp_path: Path, fetched: bool
) -> None:
    async with running({"cell-0": {"a": Pool.LP}}) as world:
        began_s = process_age_s()
        watch = CacheWatch([tmp_path], grown=fetched)
        await adopt(world.cells["cell-0"], await world.add_instance("b", caches=watch))
        (silent, measured) = world.cells["cell-0"].report().instances
        assert silent.start is None
        assert measured.start is not None
        assert measured.start.warm is not fetched
        assert began_s <= measured.start.total_s <= process_age_s()
