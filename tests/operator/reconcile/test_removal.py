"""Instances that leave: by a wish, by other hands, with their nodes, and while the head is away."""

import asyncio
from datetime import timedelta

from support.played_deployment import NAMESPACE, resource
from support.played_rounds import cells, condition, settle, settled

from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import POD


def test_a_working_instance_is_drained_before_it_is_deleted() -> None:
    played, reconciler = settled(resource(3))
    for engine in played.engines.values():
        engine.tokens = 100

    async def shrink() -> None:
        played.apply(resource(2))
        await played.round(reconciler)
        (victim,) = (e for e in played.engines.values() if e.draining)
        pod = played.pods()[victim.name]
        assert names.DRAINING_SINCE in pod["metadata"]["annotations"]
        await played.round(reconciler)
        assert "deletionTimestamp" not in played.pods()[victim.name]["metadata"]
        victim.tokens = 0
        await played.round(reconciler)
        assert "deletionTimestamp" in played.pods()[victim.name]["metadata"]
        assert victim.name not in played.cells["cell-0"]

    asyncio.run(shrink())
    assert played.cut == []


def test_a_drain_ends_with_its_budget() -> None:
    played, reconciler = settled(resource(3))
    for engine in played.engines.values():
        engine.tokens = 100

    async def shrink() -> None:
        played.apply(resource(2))
        await played.round(reconciler)
        played.now += timedelta(seconds=69)  # 30 s and 4 * 100 tokens * 0.1 s
        await played.round(reconciler)
        assert not any("deletionTimestamp" in p["metadata"] for p in played.pods().values())
        played.now += timedelta(seconds=2)
        await played.round(reconciler)
        assert any("deletionTimestamp" in p["metadata"] for p in played.pods().values())

    asyncio.run(shrink())


def test_a_pod_that_somebody_else_deletes_takes_no_new_requests_and_is_replaced() -> None:
    played, reconciler = settled(resource(3))
    leaving = played.pods()["instance-1"]
    asyncio.run(played.api.delete(POD, NAMESPACE, leaving["metadata"]["name"]))
    asyncio.run(played.round(reconciler))
    assert played.cells["cell-0"]["instance-1"].draining
    assert "instance-3" in played.pods()


def test_a_pod_on_a_lost_node_is_replaced_and_erased() -> None:
    played, reconciler = settled(resource(3))
    played.lose(played.pods()["instance-1"], kubelet_only=False)
    asyncio.run(played.round(reconciler))
    assert set(played.pods()) == {"instance-0", "instance-2", "instance-3"}


def test_where_only_the_kubelet_is_dead_the_instance_finishes_first() -> None:
    played, reconciler = settled(resource(3))
    engine = played.engines["llama-instance-1"]
    engine.tokens = 10
    played.lose(played.pods()["instance-1"], kubelet_only=True)
    asyncio.run(played.round(reconciler))
    assert engine.draining
    assert {"instance-1", "instance-3"} <= set(played.pods())
    engine.tokens = 0
    asyncio.run(played.round(reconciler))
    assert "instance-1" not in played.pods()
    asyncio.run(played.round(reconciler))
    assert "instance-1" not in played.cells["cell-0"]


def test_instances_that_serve_are_left_alone_while_the_head_is_away() -> None:
    played, reconciler = settled(resource(4))
    for engine in played.engines.values():
        engine.tokens = 100
    played.head_answers = False
    played.apply(resource(2))
    for _ in range(5):
        asyncio.run(played.round(reconciler))
    assert not any("deletionTimestamp" in pod["metadata"] for pod in played.pods().values())
    assert condition(played, "Progressing")["status"] == "True"


def test_a_head_that_comes_back_empty_gets_its_cells_again() -> None:
    played, reconciler = settled(resource(6))
    before = cells(played)
    assert len(before) == 2
    played.restart_head()
    asyncio.run(settle(played, reconciler))
    assert cells(played) == before
    assert len(played.pods()) == 6
