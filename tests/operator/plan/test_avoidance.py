"""Nodes are avoided after failed starts, and pods are replaced where that helps."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from support import crd
from support.reconcile_results import NOW, observation, reconcile_result
from support.reconcile_results import pod as usual_pod

from macroserve.operator.observe.observation import FailedStart, InstancePod, Observation
from macroserve.operator.plan.avoidance import (
    MAX_COUNTED,
    MAX_NODES,
    Avoidance,
    avoidance,
    avoided_nodes,
    misplaced,
)
from macroserve.operator.report.conditions import ConditionType, condition
from macroserve.operator.report.status import status

ECC = "CUDA error: uncorrectable ECC error encountered."
HOUR = timedelta(hours=1)


def pod(number: int = 0, failed: FailedStart | None = None, **differs: Any) -> InstancePod:
    given = {"ready": False, "node": "gpu-7", "uid": f"pod-{number}", **differs}
    return usual_pod(number, failed_start=failed, **given)


def failed(num_ended: int, device_error: str = ECC, served_until: Any = None) -> FailedStart:
    return FailedStart(num_ended, served_until, device_error)


def looked_at(*looks: tuple[InstancePod, ...], gap: timedelta = timedelta(minutes=1)) -> Avoidance:
    """Return the avoidance after reconciles that each find these pods and the previous status."""
    found = Avoidance((), ())
    for number, pods in enumerate(looks):
        seen = observation(pods=pods, now=NOW + number * gap, status=written(found))
        found = avoidance(seen)
    return found


def written(found: Avoidance) -> dict[str, Any]:
    return {
        "avoidedNodes": [entry.to_status() for entry in found.nodes],
        "failedStarts": [entry.to_status() for entry in found.starts],
    }


def one_by_one(*starts: FailedStart | None, **differs: Any) -> Avoidance:
    return looked_at(*((pod(0, start, **differs),) for start in starts))


OTHER = failed(1, "")
SERVED, LONG_AGO = NOW + timedelta(seconds=90), NOW - timedelta(days=1)
DECISIONS = {
    "no failure": (one_by_one(None), False),
    "two": (one_by_one(failed(1), failed(2)), False),
    "three, each seen": (one_by_one(failed(1), failed(2), failed(3)), True),
    "three, only the last one seen": (one_by_one(failed(3)), True),
    "three, one unseen": (one_by_one(failed(1), failed(3)), True),
    "one, seen three times": (one_by_one(failed(1), failed(1), failed(1)), False),
    "three of other causes": (one_by_one(failed(1, ""), failed(2, ""), failed(3, "")), False),
    "two, and one of another cause": (one_by_one(failed(1), failed(2), failed(3, "")), False),
    "three among others": (
        one_by_one(failed(1, ""), failed(2), failed(3, ""), failed(4), failed(5)),
        True,
    ),
    "served in between": (one_by_one(failed(1), failed(2), None, failed(3)), True),
    "after years of serving": (one_by_one(failed(9, served_until=LONG_AGO)), False),
    "three since it served": (
        one_by_one(*(failed(n, served_until=LONG_AGO) for n in (9, 10, 11))),
        True,
    ),
    "served unseen since two failures": (
        one_by_one(failed(1), failed(2), failed(4, served_until=SERVED)),
        False,
    ),
    "three pods of the instance": (
        looked_at(*((pod(0, failed(1), uid=uid),) for uid in "abc")),
        True,
    ),
    "three pods on three nodes": (
        looked_at(*((pod(0, failed(1), uid=node, node=node),) for node in "abc")),
        False,
    ),
    "one each of three instances": (looked_at(tuple(pod(n, failed(1)) for n in range(3))), False),
    "of an earlier form": (one_by_one(failed(3), revision="old"), False),
    "of a pod that is ending": (one_by_one(failed(3), deleting=True), False),
    "of a pod without a node": (one_by_one(failed(3), node=""), False),
}


@pytest.mark.parametrize(("found", "avoided"), DECISIONS.values(), ids=DECISIONS.keys())
def test_node_is_avoided_after_three_device_errors(found: Avoidance, avoided: bool) -> None:
    assert [entry.node for entry in found.nodes] == ["gpu-7"] * avoided


def test_pod_that_becomes_ready_clears_what_was_counted() -> None:
    found = looked_at(
        (pod(0, failed(2)),), (pod(0, ready=True),), (pod(0, failed(4, served_until=SERVED)),)
    )
    assert [entry.device_errors for entry in found.starts] == [1]


def test_device_failures_count_for_an_hour() -> None:
    looks = ((pod(0, failed(1)),), (), (pod(0, failed(1), uid="b"),))
    (recent,) = looked_at(*looks, gap=timedelta(minutes=29)).starts
    (late,) = looked_at(*looks, gap=timedelta(minutes=31)).starts
    assert (recent.device_errors, late.device_errors) == (2, 1)


def test_avoided_node_entry_names_instance_cause_and_end() -> None:
    (entry,) = one_by_one(failed(3)).nodes
    assert entry.to_status() == {
        "node": "gpu-7",
        "until": "2026-03-01T13:00:00Z",
        "instance": "instance-0",
        "cause": ECC,
        "revision": "new",
    }
    assert entry.problem.message == (
        "The node gpu-7 gets no instances until 2026-03-01T13:00:00Z: instance-0 failed 3 starts "
        f"there. {ECC}"
    )


def avoiding(*nodes: str, at: timedelta = timedelta(0), **differs: Any) -> Observation:
    """The status names the nodes. at: since it does."""
    pods = tuple(pod(0, failed(3), node=node) for node in nodes)
    before = written(avoidance(observation(pods=pods)))
    return observation(**{"pods": (), "status": before, "now": NOW + at, **differs})


@pytest.mark.parametrize(
    ("seen", "names"),
    [
        (avoiding("gpu-7", "gpu-8"), ["gpu-7", "gpu-8"]),
        (avoiding("gpu-7", at=HOUR - timedelta(seconds=1)), ["gpu-7"]),
        (avoiding("gpu-7", at=HOUR), []),
        (avoiding("gpu-7", revision="newer"), []),
    ],
)
def test_node_is_avoided_for_an_hour_by_pods_of_one_form(
    seen: Observation, names: list[str]
) -> None:
    assert [entry.node for entry in avoided_nodes(seen)] == names
    assert [entry.node for entry in avoidance(seen).nodes] == names


def test_another_failure_on_an_avoided_node_changes_nothing() -> None:
    before = avoiding("gpu-7")
    after = avoidance(replace(before, pods=(pod(1, failed(3)),), now=NOW + HOUR / 2))
    assert written(after) == before.status


def test_status_is_bounded_and_keeps_the_newest() -> None:
    many = tuple(pod(n, failed(3), node=f"gpu-{n}") for n in range(MAX_NODES + 5))
    nodes = avoidance(observation(pods=many)).nodes
    assert [entry.node for entry in nodes] == [f"gpu-{n}" for n in range(5, MAX_NODES + 5)]
    many = tuple(pod(n, failed(1), node=f"gpu-{n}") for n in range(MAX_COUNTED + 5))
    assert len(avoidance(observation(pods=many)).starts) == MAX_COUNTED


def test_crd_has_room_for_what_the_status_says() -> None:
    for field, bound in (("avoidedNodes", MAX_NODES), ("failedStarts", MAX_COUNTED)):
        assert crd.at("status")["properties"][field]["maxItems"] == bound
    found = avoidance(observation(pods=(pod(0, failed(3)), pod(1, failed(1), node="gpu-8"))))
    for field, (entry,) in written(found).items():
        schema = crd.at("status")["properties"][field]["items"]
        assert set(entry) == set(schema["properties"]) == set(schema["required"])


EXCLUDES = frozenset({"gpu-7"})
MISPLACED = {
    "failed there": (pod(0, failed(3)), True),
    "another one failed there once": (pod(1, failed(1)), True),
    "failed there for another cause": (pod(1, OTHER), False),
    "starts there": (pod(1), False),
    "serves there": (pod(1, ready=True), False),
    "failed elsewhere": (pod(1, failed(2), node="gpu-8"), False),
    "runs elsewhere, made before": (pod(1, node="gpu-8"), False),
    "ends": (pod(0, failed(3), deleting=True), False),
    "waits, made before": (pod(1, node=""), True),
    "waits, made since": (pod(1, node="", excluded_nodes=EXCLUDES), False),
    "waits, excludes another one": (pod(1, node="", excluded_nodes=EXCLUDES | {"gpu-8"}), True),
}


@pytest.mark.parametrize(("found", "expected"), MISPLACED.values(), ids=MISPLACED.keys())
def test_pod_that_cannot_start_is_created_again(found: InstancePod, expected: bool) -> None:
    assert bool(misplaced(avoiding("gpu-7"), found)) is expected


def test_pod_that_waits_is_created_again_when_the_hour_is_over() -> None:
    waits = pod(0, node="", excluded_nodes=EXCLUDES)
    assert misplaced(avoiding("gpu-7", at=HOUR - timedelta(seconds=1)), waits) is None
    assert misplaced(avoiding("gpu-7", at=HOUR), waits)


def test_degraded_says_which_node_is_avoided_and_why() -> None:
    found = reconcile_result(avoiding("gpu-7", pods=tuple(usual_pod(n) for n in range(3))))
    degraded = condition(status(found, ())["conditions"], ConditionType.DEGRADED)
    assert (degraded["status"], degraded["reason"]) == ("True", "NodeAvoided")
    assert ECC in degraded["message"] and "gpu-7" in degraded["message"]
