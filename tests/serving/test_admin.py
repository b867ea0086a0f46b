"""An order to move an instance that fails leaves it in the cell where it was."""

import pytest
from support.emulated_world import World, expected_tokens, running, token_request
from support.migration import migration

from macroserve.core.status import Pool

TWO = {"cell-0": {"a": Pool.LP}, "cell-1": {"b": Pool.LP}}


async def no_cell(world: World) -> None:
    await world.stop_cell("cell-1")
    del world.urls["cell-1"]


async def silent_cell(world: World) -> None:
    await world.stop_cell("cell-1")


async def refusing_cell(world: World) -> None:
    """Put the address of the source's cell in place of the target's: it refuses what is not sent to
    itself."""
    world.urls["cell-1"] = world.urls["cell-0"]


@pytest.mark.parametrize("fault", [no_cell, silent_cell, refusing_cell])
async def test_migration_that_the_target_does_not_take_is_undone(fault) -> None:
    async with running(TWO) as world:
        await fault(world)
        answer = await migration(world, "a", "cell-0", "cell-1")
        assert answer.status_code >= 400 and "error" in answer.json()

        async def back() -> bool:
            report = world.cells["cell-0"].report()
            return report.cell.num_ready == 1 and report.cell.instances == ("a",)

        await world.until(back)
        request = token_request("r")
        assert await world.tokens(request) == expected_tokens(request)


async def test_migration_of_an_instance_that_is_elsewhere_changes_nothing() -> None:
    async with running(TWO) as world:
        answer = await migration(world, "b", "cell-0", "cell-1")
        assert answer.status_code == 404
        assert [world.cells[name].report().cell.instances for name in TWO] == [("a",), ("b",)]
