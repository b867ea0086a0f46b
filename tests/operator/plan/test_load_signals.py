"""A MacroInstance is below its target if one of its classes is."""

from typing import Any

import pytest
from support.reconcile_results import cell, manifest, observation
from support.scaled_deployment import load_of, told

from macroserve.api.messages import Report
from macroserve.core.scaling.signals import FEWEST_FINISHED
from macroserve.core.strategy import Ordering
from macroserve.core.tuning import Tuning
from macroserve.operator.plan.load_signals import design, is_below_target, start_s

CLASSES = [
    {"name": "chat", "ttft": "1s", "tpot": "50ms", "attainment": 0.95},
    {"name": "batch", "ttft": "30s", "tpot": "500ms", "attainment": 0.5},
]
SLO = {"ttft": "2s", "tpot": "100ms", "attainment": 0.9, "classes": CLASSES}


@pytest.mark.parametrize(
    ("ended", "by_class", "is_below"),
    [
        ((0, 0), {}, False),
        ((100, 90), {}, False),
        ((100, 89), {}, True),
        ((FEWEST_FINISHED - 1, 0), {}, False),
        ((200, 185), {"chat": (100, 95)}, False),
        ((200, 184), {"chat": (100, 94)}, True),
        ((200, 184), {"chat": (100, 95)}, True),
        ((200, 140), {"batch": (100, 50)}, False),
        ((200, 139), {"batch": (100, 49)}, True),
        ((109, 90), {"chat": (9, 0)}, False),
        ((109, 90), {"gone": (9, 0)}, False),
    ],
)
def test_attainment_of_each_class_is_held_against_its_own_goal(ended, by_class, is_below) -> None:
    found = cell("cell-0", 0, finished=ended[0], attained=ended[1], by_class=by_class)
    assert is_below_target(manifest(slo=SLO), Report((found,))) is is_below


def test_attainment_without_a_report_is_not_below() -> None:
    assert not is_below_target(manifest(slo=SLO), None)


def test_simulated_instances_have_the_numbers_of_the_spec() -> None:
    report = Report((told(cell("cell-0", 0, 1, 2)),))
    spec = {
        "strategy": "sarathi",
        "tuning": {"chunkTokens": 1024},
        "dropLate": True,
    }
    found = design(observation(manifest=manifest(scheduling=spec), report=report), load_of())
    assert found is not None
    assert found.config.tuning == Tuning(chunk_tokens=1024)
    assert found.config.drop_late


def test_simulated_instances_have_the_bound_of_late_requests() -> None:
    report = Report((told(cell("cell-0", 0, 1, 2)),))
    spec = {"strategy": "unified", "maxLateWait": "20s"}
    found = design(observation(manifest=manifest(scheduling=spec), report=report), load_of())
    assert found is not None
    assert found.config.max_late_wait_s == 20.0


@pytest.mark.parametrize(
    ("ordering", "expected"),
    [("Auto", Ordering.SLACK), ("SJF", Ordering.SJF), ("mine:order", Ordering.SLACK)],
)
def test_simulated_instances_have_the_ordering_of_the_spec(ordering, expected) -> None:
    report = Report((told(cell("cell-0", 0, 1, 2)),))
    spec = {"strategy": "ascendra", "ordering": ordering}
    found = design(observation(manifest=manifest(scheduling=spec), report=report), load_of())
    assert found is not None
    assert found.config.strategy.ordering is expected


def test_simulated_instances_have_the_classes_and_goals_of_the_spec() -> None:
    report = Report((told(cell("cell-0", 0, 1, 2)),))
    found = design(observation(manifest=manifest(slo=SLO), report=report), load_of())
    assert found is not None
    assert [each.name for each in found.slo_classes] == ["chat", "batch"]
    assert found.goal == 0.9


ALL, COLD, WARM = (
    {"p50Seconds": p50, "p90Seconds": p90, "samples": 4}
    for p50, p90 in ((60, 300), (200, 310), (30, 40))
)
BOTH = {**ALL, "cold": COLD, "warm": WARM}
STARTS: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None, float]] = {
    "not measured": (None, {"claim": "models"}, 75.0),
    "without a cache": ({**ALL, "cold": COLD}, None, 300.0),
    "in a claim that is filled": (BOTH, {"claim": "models"}, 40.0),
    "in a claim that is being filled": ({**ALL, "cold": COLD}, {"claim": "models"}, 300.0),
    "in folders of the nodes": (BOTH, {"hostPath": "/models"}, 300.0),
    "in an image": (BOTH, {"image": "r/models:1"}, 300.0),
}


@pytest.mark.parametrize("case", STARTS)
def test_start_takes_what_was_measured_of_its_kind(case: str) -> None:
    measured, cache, expected = STARTS[case]
    model = {"source": "tiny", "maxModelLen": 64} | ({"cache": cache} if cache else {})
    seen = observation(
        manifest=manifest(model=model), status={"startup": measured} if measured else {}
    )
    assert start_s(seen, 75.0) == expected
