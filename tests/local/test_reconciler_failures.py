"""The reconciler continues after failures of starts, cells and rounds."""

import pytest
from support.fake_cluster import FakeCluster

from macroserve.api.messages import InstanceIdentity
from macroserve.core.status import Pool
from macroserve.local.reconciler import NeverServedError


async def test_reconciler_whose_first_instances_never_start_ends(play) -> None:
    error = ValueError("no such model\nat all")
    scene = await play(1, FakeCluster(start_error=error))
    with pytest.raises(NeverServedError, match=r"^no such model at all$"):
        await scene.task
    told = [event for event in scene.events if "instance-0 did not start" in event]
    assert len(told) == 1 and "no such model at all (Retry in" in told[0]
    assert sum("Add instance-0" in event for event in scene.events) == 1


async def test_reconciler_whose_first_cell_never_starts_ends(play) -> None:
    scene = await play(1, FakeCluster(failing={"deploy"}))
    with pytest.raises(NeverServedError, match="no memory"):
        await scene.task


@pytest.mark.parametrize("kind", ["more instances", "a killed instance", "another cell"])
async def test_failed_starts_after_the_first_never_end_what_serves(play, kind: str) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    calls = 0
    start = scene.world.start_instance

    async def failing(name: str, pool: Pool) -> InstanceIdentity:
        nonlocal calls
        calls += 1
        raise RuntimeError("no memory")

    if kind == "another cell":
        scene.world.failing = {"deploy"}
        scene.ask_for(5)
        await scene.rounds(20)
        assert set(scene.world.deployed) == {"cell-0"}
    else:
        scene.world.start_instance = failing  # type: ignore[method-assign]
        if kind == "a killed instance":
            del scene.world.alive["instance-1"]
        else:
            scene.ask_for(4)
        await scene.until(lambda: calls > 20)
    assert not scene.task.done()
    assert sum("no memory" in event for event in scene.events) == 1
    scene.world.failing = set()
    scene.world.start_instance = start  # type: ignore[method-assign]
    wanted = scene.reconciler.desired.desired_instances
    await scene.until(lambda: sum(scene.cells().values()) == wanted)
    scene.task.cancel()


async def test_reconcile_that_fails_is_logged_once_and_ends_no_instance(play) -> None:
    scene = await play(2)
    await scene.until(lambda: scene.cells() == {"cell-0": 2})
    names = scene.world.instance_names

    def gone() -> set[str]:
        raise ConnectionError("the control store is away")

    scene.world.instance_names = gone  # type: ignore[method-assign]
    await scene.rounds(20)
    assert not scene.task.done()
    assert sum("control store is away" in event for event in scene.events) == 1
    scene.world.instance_names = names  # type: ignore[method-assign]
    scene.ask_for(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    scene.task.cancel()


async def test_failed_first_starts_end_nothing_while_another_instance_is_still_starting(
    play,
) -> None:
    world = FakeCluster()
    world.may_serve.clear()
    start, calls = world.start_instance, 0

    async def one_fails(name: str, pool: Pool) -> InstanceIdentity:
        nonlocal calls
        if name == "instance-0":
            return await start(name, pool)
        calls += 1
        raise RuntimeError("no memory")

    world.start_instance = one_fails  # type: ignore[method-assign]
    scene = await play(2, world)
    await scene.until(lambda: calls > 10)
    world.may_serve.set()
    await scene.until(lambda: scene.cells() == {"cell-0": 1})
    await scene.rounds(10)
    assert not scene.task.done()
    scene.task.cancel()
