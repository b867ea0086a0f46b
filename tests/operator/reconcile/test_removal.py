"""Instances are removed by the plan, by others, with their nodes, and without a head."""

import asyncio
from datetime import timedelta

from support.fake_deployment import NAMESPACE, resource
from support.fake_reconciles import cells, condition, settle, settled

from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import POD


def test_working_instance_is_drained_before_it_is_deleted() -> None:
    fake, reconciler = settled(resource(3))
    for engine in fake.engines.values():
        engine.tokens = 100

    async def shrink() -> None:
        fake.apply(resource(2))
        await fake.reconcile(reconciler)
        (victim,) = (e for e in fake.engines.values() if e.draining)
        pod = fake.pods()[victim.name]
        assert names.DRAINING_SINCE in pod["metadata"]["annotations"]
        await fake.reconcile(reconciler)
        assert "deletionTimestamp" not in fake.pods()[victim.name]["metadata"]
        victim.tokens = 0
        await fake.reconcile(reconciler)
        assert "deletionTimestamp" in fake.pods()[victim.name]["metadata"]
        assert victim.name not in fake.cells["cell-0"]

    asyncio.run(shrink())
    assert fake.cut == []


def test_drain_ends_with_its_budget() -> None:
    fake, reconciler = settled(resource(3))
    for engine in fake.engines.values():
        engine.tokens = 100

    async def shrink() -> None:
        fake.apply(resource(2))
        await fake.reconcile(reconciler)
        fake.now += timedelta(seconds=69)  # 30 s and 4 * 100 tokens * 0.1 s
        await fake.reconcile(reconciler)
        assert not any("deletionTimestamp" in p["metadata"] for p in fake.pods().values())
        fake.now += timedelta(seconds=2)
        await fake.reconcile(reconciler)
        assert any("deletionTimestamp" in p["metadata"] for p in fake.pods().values())

    asyncio.run(shrink())


def test_pod_that_somebody_else_deletes_takes_no_new_requests_and_is_replaced() -> None:
    fake, reconciler = settled(resource(3))
    leaving = fake.pods()["instance-1"]
    asyncio.run(fake.api.delete(POD, NAMESPACE, leaving["metadata"]["name"]))
    asyncio.run(fake.reconcile(reconciler))
    assert fake.cells["cell-0"]["instance-1"].draining
    assert "instance-3" in fake.pods()


def test_pod_on_a_lost_node_is_replaced_and_erased() -> None:
    fake, reconciler = settled(resource(3))
    fake.lose(fake.pods()["instance-1"], kubelet_only=False)
    asyncio.run(fake.reconcile(reconciler))
    assert set(fake.pods()) == {"instance-0", "instance-2", "instance-3"}


def test_instance_whose_kubelet_alone_is_dead_finishes_first() -> None:
    fake, reconciler = settled(resource(3))
    engine = fake.engines["llama-instance-1"]
    engine.tokens = 10
    fake.lose(fake.pods()["instance-1"], kubelet_only=True)
    asyncio.run(fake.reconcile(reconciler))
    assert engine.draining
    assert {"instance-1", "instance-3"} <= set(fake.pods())
    engine.tokens = 0
    asyncio.run(fake.reconcile(reconciler))
    assert "instance-1" not in fake.pods()
    asyncio.run(fake.reconcile(reconciler))
    assert "instance-1" not in fake.cells["cell-0"]


def test_instances_that_serve_are_left_alone_while_the_head_is_away() -> None:
    fake, reconciler = settled(resource(4))
    for engine in fake.engines.values():
        engine.tokens = 100
    fake.head_answers = False
    fake.apply(resource(2))
    for _ in range(5):
        asyncio.run(fake.reconcile(reconciler))
    assert not any("deletionTimestamp" in pod["metadata"] for pod in fake.pods().values())
    assert condition(fake, "Progressing")["status"] == "True"


def test_head_that_comes_back_empty_gets_its_cells_again() -> None:
    fake, reconciler = settled(resource(6))
    before = cells(fake)
    assert len(before) == 2
    fake.restart_head()
    asyncio.run(settle(fake, reconciler))
    assert cells(fake) == before
    assert len(fake.pods()) == 6
