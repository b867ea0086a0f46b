"""The status of a reconcile is complete, and stays equal while nothing happens."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from support import crd
from support.instance_reports import busy, busy_cell
from support.reconcile_results import (
    HYBRID_CACHE,
    NOW,
    PREFIX_CACHING,
    PROBLEM,
    cell,
    manifest,
    observation,
    pod,
    reconcile_result,
    target,
)

from macroserve.api.messages import Report
from macroserve.operator.observe.observation import ServerState
from macroserve.operator.observe.target import Change
from macroserve.operator.report.conditions import ConditionType, condition
from macroserve.operator.report.decisions import DecisionRecord
from macroserve.operator.report.status import invalid_status, status

DECISION = DecisionRecord("2026-03-01T11:00:00Z", "Merge cell-1 into cell-0", "They fit.", "Merged")
CHANGE = Change(NOW, 3, 5, "spec.instances is 5.")


CLASSES = [
    {"name": "chat", "ttft": "1s", "tpot": "50ms"},
    {"name": "batch", "ttft": "30s", "tpot": "500ms"},
]


def fields(found: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: found[name] for name in names if name in found}


def test_status_of_a_settled_macroinstance_is_as_listed() -> None:
    counts: dict[str, Any] = {"finished": 100, "attained": 97}
    counts |= {"prompt_tokens": 1000, "cached_tokens": 625}
    counts |= {"num_running": 4, "num_prefilling": 1, "num_decoding": 3, "num_waiting": 2}
    report = Report((cell("cell-0", 0, 1, 2, **counts),))
    desired = target(high_priority_ratio=0.25)
    found = status(reconcile_result(observation(report=report), desired), [DECISION])
    assert len(found.pop("conditions")) == 5
    assert len(found.pop("scheduling")["instances"]) == 3
    assert found == {
        "observedGeneration": 4,
        "ready": "3/3",
        "instances": 3,
        "readyInstances": 3,
        "targetInstances": 3,
        "cellCount": 1,
        "highPriority": 1,
        "highPriorityRatio": 0.25,
        "selector": "macroserve.io/macroinstance=llama,macroserve.io/component=instance",
        "attainment": "0.97",
        "hybridCache": HYBRID_CACHE,
        "prefixCaching": PREFIX_CACHING,
        "prefixCacheHitRatio": "0.62",
        "endpoint": "http://llama.team.svc:8000/v1",
        "cells": [
            {
                "name": "cell-0",
                "instances": 3,
                "highPriority": 1,
                "prefilling": 1,
                "decoding": 3,
                "waiting": 2,
                "running": 4,
                "attainment": "0.97",
                "phases": "3 idle",
                "prefixCacheHitRatio": "0.62",
            }
        ],
        "decisions": [
            {
                "time": "2026-03-01T11:00:00Z",
                "what": "Merge cell-1 into cell-0",
                "reason": "They fit.",
            }
        ],
    }


DECIDED = {"hybrid_cache": HYBRID_CACHE, "prefix_caching": PREFIX_CACHING}
BUSY = reconcile_result(
    observation(
        pods=(pod(0), pod(1), replace(pod(2), ready=False, problem=PROBLEM)),
        report=Report(
            (
                busy_cell(
                    "cell-0",
                    busy(0, {"phase_s": None}, **DECIDED),
                    busy(1, {"phase_s": None}, **DECIDED),
                    recent_finished=3,
                    recent_attained=1,
                    recent_decodes=1,
                ),
            )
        ),
        manifest=manifest(slo={"ttft": "2s", "tpot": "100ms", "classes": CLASSES}),
        ingress=ServerState(0, 2),
    ),
    target(5, change=CHANGE),
)
NEW = reconcile_result(observation(pods=(), head=None, ingress=None, report=None))


@pytest.mark.parametrize("found", [reconcile_result(), BUSY, NEW])
def test_status_has_only_fields_of_the_crd(found: Any) -> None:
    assert crd.refused(crd.with_status(status(found, [DECISION]))) == []


def test_status_has_the_hybrid_cache_once() -> None:
    assert status(BUSY, ())["hybridCache"] == HYBRID_CACHE
    assert "hybridCache" not in status(NEW, ())


def test_status_has_prefix_caching_once() -> None:
    assert status(BUSY, ())["prefixCaching"] == PREFIX_CACHING
    assert "prefixCaching" not in status(NEW, ())


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([(0, 0)], None),
        ([(1000, 0)], "0.00"),
        ([(1000, 999)], "0.99"),
        ([(1000, 1000), (1000, 0)], "0.50"),
    ],
)
def test_status_hit_ratio_sums_all_cells(
    counts: list[tuple[int, int]], expected: str | None
) -> None:
    cells = tuple(
        cell(f"cell-{number}", prompt_tokens=prompt, cached_tokens=cached)
        for number, (prompt, cached) in enumerate(counts)
    )
    found = status(reconcile_result(observation(report=Report(cells))), ())
    assert found.get("prefixCacheHitRatio") == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([(0, 0)], None), ([(100, 100)], "1.00"), ([(70, 200), (0, 0)], "2.85")],
)
def test_status_accepted_tokens_are_those_of_all_cells(
    counts: list[tuple[int, int]], expected: str | None
) -> None:
    cells = tuple(
        cell(f"cell-{number}", decodes=decodes, decoded_tokens=num_tokens)
        for number, (decodes, num_tokens) in enumerate(counts)
    )
    found = status(reconcile_result(observation(report=Report(cells))), ())
    assert found.get("acceptedTokensPerStep") == expected


def test_crd_status_fields_are_all_reported() -> None:
    found = status(BUSY, [DECISION])
    # Their own tests look at a status with measured starts, and with nodes that are avoided.
    elsewhere = {"startup", "avoidedNodes", "failedStarts"}
    assert set(crd.at("status")["properties"]) - elsewhere == set(found)
    for part in ("cells", "sloClasses", "scalingHistory", "decisions", "conditions"):
        assert set(crd.at(f"status.{part}")["items"]["properties"]) == set(found[part][0])


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ((), ("0/3", 0, 0)),
        ((pod(0), replace(pod(1), ready=False)), ("1/3", 2, 1)),
        ((pod(0), replace(pod(1), draining_since=NOW)), ("1/3", 2, 1)),
        ((pod(0), replace(pod(1), deleting=True)), ("1/3", 1, 1)),
        (tuple(pod(n) for n in range(5)), ("5/3", 5, 5)),
    ],
)
def test_status_counts_instances_by_state(
    pods: tuple[Any, ...], expected: tuple[str, int, int]
) -> None:
    found = status(reconcile_result(observation(pods=pods)), ())
    assert (found["ready"], found["instances"], found["readyInstances"]) == expected


def test_status_cells_are_sorted_and_sum_to_high_priority() -> None:
    high = msgspec.structs.replace(
        cell("cell-10", 5, 6).cell, high_priority=("instance-5", "instance-6")
    )
    report = Report((replace_cell(cell("cell-10", 5, 6), high), cell("cell-2", 0, 1)))
    found = status(reconcile_result(observation(report=report)), ())
    assert [one["name"] for one in found["cells"]] == ["cell-2", "cell-10"]
    assert (found["cellCount"], found["highPriority"]) == (2, 3)


def replace_cell(report: Any, view: Any) -> Any:
    return type(report)(view, report.instances)


def test_status_without_the_head_has_the_cells_of_the_labels() -> None:
    pods = (
        pod(0),
        pod(1),
        replace(pod(2), cell="cell-1", deleting=True),
        replace(pod(3), cell="cell-1"),
    )
    found = status(reconcile_result(observation(pods=pods, report=None)), ())
    assert found["cells"] == [
        {"name": "cell-0", "instances": 2, "highPriority": 1},
        {"name": "cell-1", "instances": 1, "highPriority": 0},
    ]
    assert found["ready"] == "3/3", "instances serve on without the head"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([(0, 0)], None),
        ([(1000, 999)], "0.99"),
        ([(1000, 1000)], "1.00"),
        ([(3, 0)], "0.00"),
        ([(10, 10), (30, 15)], "0.62"),
        ([(0, 0), (4, 3)], "0.75"),
    ],
)
def test_status_attainment_is_rounded_down(
    counts: list[tuple[int, int]], expected: str | None
) -> None:
    cells = tuple(
        cell(f"cell-{number}", finished=finished, attained=attained)
        for number, (finished, attained) in enumerate(counts)
    )
    found = status(reconcile_result(observation(report=Report(cells))), ())
    assert found.get("attainment") == expected
    assert ("attainment" in found["cells"][0]) == (counts[0][0] > 0)


def test_change_of_the_desired_instances_is_added_to_the_history() -> None:
    old = [{"time": f"t{n}", "from": n, "to": n + 1, "reason": "Why."} for n in range(20)]
    before = {"scalingHistory": old}
    unchanged = status(reconcile_result(observation(status=before)), ())
    assert unchanged["scalingHistory"] == old
    changed = status(reconcile_result(observation(status=before), target(5, change=CHANGE)), ())
    assert changed["scalingHistory"] == [
        *old[1:],
        {
            "time": "2026-03-01T12:00:00Z",
            "from": 3,
            "to": 5,
            "reason": "spec.instances is 5.",
        },
    ]
    assert len(old) == 20, "the status before is left as it was"


def test_status_keeps_the_newest_decisions() -> None:
    many = [replace(DECISION, what=f"Merge cell-{n} into cell-0") for n in range(25)]
    found = status(reconcile_result(), many)["decisions"]
    assert [entry["what"] for entry in found] == [decision.what for decision in many[5:]]


@pytest.mark.parametrize("found", [reconcile_result(), BUSY, NEW])
def test_status_without_a_change_stays_equal(found: Any) -> None:
    first = status(found, [DECISION])
    later = replace(found.observation, now=NOW + timedelta(hours=2), status=first)
    calm = replace(found.target, change=None)
    assert status(replace(found, observation=later, target=calm), [DECISION]) == first


def test_status_of_an_invalid_spec_changes_its_condition_alone() -> None:
    before = status(reconcile_result(), [DECISION])
    after = invalid_status(before, ["spec.instances is 0."], 5, NOW)
    assert after["observedGeneration"] == 5
    assert condition(after["conditions"], ConditionType.DEGRADED)["reason"] == "InvalidSpec"
    same = set(before) - {"observedGeneration", "conditions"}
    assert fields(after, *same) == fields(before, *same)
    again = invalid_status(after, ["spec.instances is 0."], 5, NOW + timedelta(hours=1))
    assert again == after


def test_status_of_a_never_valid_spec_fits_the_crd() -> None:
    found = invalid_status({}, ["spec.instances is 0."], 1, NOW)
    assert set(found) == {"observedGeneration", "conditions"}
    assert (
        "spec.instances is 0." in condition(found["conditions"], ConditionType.DEGRADED)["message"]
    )


def test_status_has_the_attainment_of_each_class() -> None:
    by_class = {"chat": (10, 9), "gone": (5, 5)}
    cells = (
        cell("cell-0", 0, 1, finished=100, attained=90, by_class=by_class),
        cell("cell-1", 2, finished=50, attained=10, by_class={"chat": (30, 10)}),
    )
    spec = {"slo": {"ttft": "2s", "tpot": "100ms", "classes": CLASSES}}
    seen = observation(manifest=manifest(**spec), report=Report(cells))
    found = status(reconcile_result(seen), ())
    assert found["attainment"] == "0.66"
    assert found["sloClasses"] == [
        {"name": "default", "attainment": "0.72"},
        {"name": "chat", "attainment": "0.47"},
        {"name": "batch"},
    ]
    assert "sloClasses" not in status(reconcile_result(), ())
