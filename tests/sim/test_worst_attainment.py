"""The worst attainment is that of the SLO class that misses its goal most."""

import pytest
from support.slo_classes import BATCH, INTERACTIVE

from macroserve.core.status import Ended
from macroserve.sim.results import RunResult


@pytest.mark.parametrize(
    ("ended", "worst", "attains"),
    [
        ({}, 0.8, False),
        ({"default": (100, 90), "batch": (100, 80)}, 0.9, True),
        ({"default": (100, 99), "batch": (100, 79)}, 0.9 * 79 / 80, False),
        ({"interactive": (100, 95), "batch": (10, 8)}, 0.9, True),
        ({"interactive": (1000, 949), "batch": (10, 10)}, 0.9 * 949 / 950, False),
        ({"default": (10, 9), "gone": (10, 8)}, 0.8, False),
    ],
)
def test_class_that_is_worst_off_by_its_goal_counts(
    ended: dict[str, tuple[int, int]], worst: float, attains: bool
) -> None:
    by_class = {name: Ended(*counts) for name, counts in ended.items()}
    result = RunResult(100, 80, True, by_class)
    found = result.worst_attainment((INTERACTIVE, BATCH), 0.9)
    assert found == pytest.approx(worst)
    assert (found >= 0.9) is attains
