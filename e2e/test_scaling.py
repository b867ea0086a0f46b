"""Mitosis and ratio changes on real nodes, with requests running; none may fail."""

import pytest
from world.served import Served
from world.traffic import Traffic
from world.waiting import eventually

pytestmark = pytest.mark.e2e


def test_scale_up_splits_and_scale_down_merges(fresh: Served) -> None:
    with Traffic(fresh.endpoint) as traffic:
        traffic.after(10)
        fresh.scale(7)
        fresh.wait_for_instances(7)
        assert sorted(fresh.cells.values()) == [3, 4]
        assert fresh.kube("get", "mi", fresh.name, "--no-headers").split()[1:3] == ["7/7", "2"]
        traffic.after(10)
        fresh.scale(3)
        fresh.wait_for_instances(3)
        assert fresh.cells == {"cell-0": 3}
        traffic.after(10)
    assert not traffic.failures
    reasons = fresh.kube.event_reasons(fresh.name)
    assert {"ScaledUp", "Split", "ScaledDown", "Merged"} <= set(reasons)
    described = fresh.describe()
    for word in ("Split", "Merged", "Scaling History", "From:", "cell-0", "AbleToScale"):
        assert word in described


def test_priority_ratio_changes_live(served: Served) -> None:
    def high_priority() -> int:
        return sum(cell["highPriority"] for cell in served.status["cells"])

    pods = {pod["metadata"]["uid"] for pod in served.pods()}
    with Traffic(served.endpoint) as traffic:
        traffic.after(5)
        assert high_priority() == 1
        served.apply(priority={"highPriorityRatio": 0.67})
        eventually(lambda: high_priority() == 2, 30, describe=served.describe)
        traffic.after(10)
        served.apply(priority={"highPriorityRatio": 0.0})
        eventually(lambda: high_priority() == 0, 30, describe=served.describe)
        traffic.after(10)
    assert not traffic.failures
    assert "RatioChanged" in served.kube.event_reasons(served.name)
    assert {pod["metadata"]["uid"] for pod in served.pods()} == pods, "a pod was replaced"


def test_new_template_rolls_one_instance_after_another(fresh: Served) -> None:
    before = {pod["metadata"]["uid"] for pod in fresh.pods()}
    with Traffic(fresh.endpoint) as traffic:
        traffic.after(5)
        fresh.apply(template={"metadata": {"labels": {"rolled": "yes"}}})
        eventually(
            lambda: (
                len(pods := fresh.pods()) == 3
                and all(pod["metadata"]["labels"].get("rolled") == "yes" for pod in pods)
            ),
            180,
            describe=fresh.describe,
            every_s=1,
        )
        fresh.wait_for_instances(3)
        traffic.after(10)
    assert not traffic.failures
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in fresh.pods())
