"""The reconciler observes a fake cluster and brings it to the desired fleet."""

import pytest
from support.fake_cluster import FakeCluster

from macroserve.core.scaling.fleet import DesiredFleet
from macroserve.core.scaling.mitosis import Bounds
from macroserve.core.status import Pool
from macroserve.local import reconciler as reconcile


async def test_reconciler_of_a_new_fleet_starts_instances_and_joins_them(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    assert "instance-2 serves in cell-0." in scene.events
    assert scene.events.count("Cell scheduler cell-0 is up.") == 1
    before = list(scene.events)
    await scene.rounds()
    assert scene.events == before, "as desired, there is nothing to say"
    scene.task.cancel()


async def test_instances_start_before_any_cell_answers(play) -> None:
    scene = await play(3, FakeCluster(failing={"report"}))
    await scene.until(lambda: len(scene.world.alive) == 3)
    scene.world.failing.clear()
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    scene.task.cancel()


async def test_fleet_scaled_up_and_down_splits_and_merges_cells(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    scene.ask_for(5)
    await scene.until(lambda: sorted(scene.cells().values()) == [2, 3])
    assert sum("Split cell-0" in event for event in scene.events) == 1
    for instance in scene.world.alive.values():
        instance.running = 1
    scene.ask_for(3)
    await scene.until(lambda: sum(i.draining for i in scene.world.alive.values()) == 2)
    await scene.rounds()
    assert len(scene.world.alive) == 5, "what drains has work"
    for instance in scene.world.alive.values():
        instance.running = 0
    await scene.until(lambda: scene.cells() == {"cell-0": 3} or scene.cells() == {"cell-1": 3})
    assert len(scene.world.alive) == 3
    assert sorted(scene.world.released) == sorted(scene.world.killed)
    # Their names are given out again, and with them nothing of what was.
    scene.ask_for(5)
    await scene.until(lambda: sorted(scene.cells().values()) == [2, 3])
    await scene.rounds()
    assert len(scene.world.killed) == 2
    scene.task.cancel()


async def test_instances_of_a_fleet_of_two_cells_start_where_they_stay(play) -> None:
    scene = await play(7)
    await scene.until(lambda: sorted(scene.cells().values()) == [3, 4])
    await scene.rounds()
    assert scene.world.moved == []
    assert sum("Split" in event for event in scene.events) == 1
    scene.task.cancel()


async def test_drain_past_its_budget_is_cut_off(play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "drain_budget_s", lambda *_: -1.0)
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    for instance in scene.world.alive.values():
        instance.running = 1
    scene.ask_for(2)
    await scene.until(lambda: len(scene.world.alive) == 2)
    scene.task.cancel()


async def test_order_that_fails_is_repeated_and_logged_once(play) -> None:
    scene = await play(4, FakeCluster(failing={"adopt"}))
    await scene.until(lambda: all(i.serves for i in scene.world.alive.values()))
    await scene.rounds()
    assert scene.cells() == {"cell-0": 0}
    scene.world.failing = {"migrate", "drain"}
    await scene.until(lambda: scene.cells() == {"cell-0": 4})
    scene.reconciler.desired = DesiredFleet(4, Bounds(1, 2), 0.0)
    await scene.until(lambda: "cell-1" in scene.world.deployed)
    await scene.rounds()
    assert scene.world.moved == []
    scene.world.failing = {"drain"}
    await scene.until(lambda: scene.cells() == {"cell-0": 2, "cell-1": 2})
    assert sum("Split" in event for event in scene.events) == 1
    scene.ask_for(3)
    await scene.rounds()
    assert len(scene.world.alive) == 4
    scene.world.failing = set()
    await scene.until(lambda: len(scene.world.alive) == 3)
    scene.task.cancel()


async def test_draining_instance_after_a_scale_up_still_leaves(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    for instance in scene.world.alive.values():
        instance.running = 1
    scene.ask_for(2)
    await scene.until(lambda: any(i.draining for i in scene.world.alive.values()))
    leaving = next(i for i in scene.world.alive.values() if i.draining)
    scene.ask_for(3)
    leaving.cell = None
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    assert leaving not in scene.world.alive.values()
    scene.task.cancel()


async def test_reconciler_with_a_dead_instance_replaces_it(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    del scene.world.alive["instance-1"]
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    assert set(scene.world.alive) == {"instance-0", "instance-1", "instance-2"}
    assert [e for e in scene.events if " ended: " in e] == ["instance-1 ended: it was killed."]
    scene.task.cancel()


async def test_instance_that_hangs_is_replaced_under_its_name(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    hung = scene.world.alive["instance-1"]
    hung.hangs = True
    await scene.until(lambda: scene.cells() == {"cell-0": 3} and "instance-1" in scene.world.killed)
    assert scene.world.alive["instance-1"] is not hung
    assert scene.world.killed == ["instance-1"]
    assert [e for e in scene.events if " ended: " in e] == ["instance-1 ended: it hangs."]
    scene.task.cancel()


async def test_instance_that_is_scaled_down_is_not_logged_as_lost(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    scene.ask_for(2)
    await scene.until(lambda: len(scene.world.alive) == 2)
    await scene.rounds()
    removed = [event for event in scene.events if "was removed" in event]
    assert len(removed) == 1 and not any(" ended: " in event for event in scene.events)
    scene.task.cancel()


async def test_instances_while_no_cell_answers_are_not_logged_as_lost(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    scene.world.failing = {"report"}
    await scene.rounds()
    assert not any(" ended: " in event for event in scene.events)
    scene.task.cancel()


async def test_instance_that_its_cell_lost_comes_back_with_its_pool(play) -> None:
    scene = await play(5)
    await scene.until(lambda: sorted(scene.cells().values()) == [2, 3])
    scene.ask_for(5, ratio=0.5)
    await scene.until(lambda: sum(i.pool is Pool.HP for i in scene.world.alive.values()) == 3)
    pools = {name: (i.cell, i.pool) for name, i in scene.world.alive.items()}
    lost = next(i for i in scene.world.alive.values() if i.cell == "cell-1" and i.pool is Pool.HP)
    lost.cell = None
    await scene.until(lambda: lost.cell)
    assert {name: (i.cell, i.pool) for name, i in scene.world.alive.items()} == pools
    assert scene.world.killed == []
    scene.task.cancel()


async def test_starting_instance_after_a_scale_down_is_ended(play) -> None:
    scene = await play(2)
    await scene.until(lambda: scene.cells() == {"cell-0": 2})
    scene.world.may_serve.clear()
    scene.ask_for(4)
    await scene.until(lambda: len(scene.world.alive) == 4)
    scene.ask_for(2)
    await scene.until(lambda: len(scene.world.alive) == 2)
    assert all(i.serves for i in scene.world.alive.values())
    scene.task.cancel()


async def test_dead_instance_while_a_cell_is_away_is_replaced(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    scene.world.failing = {"report"}
    del scene.world.alive["instance-1"]
    await scene.until(lambda: "instance-1" in scene.world.alive)
    scene.task.cancel()


async def test_scale_down_while_a_cell_is_away_waits(play) -> None:
    scene = await play(3)
    await scene.until(lambda: scene.cells() == {"cell-0": 3})
    scene.world.failing = {"report"}
    scene.ask_for(2)
    await scene.rounds()
    assert scene.world.killed == [] and len(scene.world.alive) == 3
    scene.world.failing = set()
    await scene.until(lambda: len(scene.world.alive) == 2)
    scene.task.cancel()
