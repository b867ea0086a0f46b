"""Late steps are warned of, and logged if a folder is given."""

import json
from pathlib import Path

import pytest
from support.log_lines import log_lines

from macroserve.rehearsal.pace import Load, Step
from macroserve.rehearsal.step_log import NUM_STEPS, StepLog


def step(late_s: float) -> Step:
    return Step(1.0, 1.05, 0.0, Load([(5, 0)], 2, 30), late_s)


@pytest.mark.parametrize(
    ("late_s", "num_late", "has_slept", "num_warnings"),
    [
        (0.01, NUM_STEPS // 50, True, 1),
        (0.01, NUM_STEPS // 200, True, 0),
        (0.0005, NUM_STEPS, True, 0),
        (0.01, NUM_STEPS, False, 0),
    ],
    ids=["2 % late", "0.5 % late", "all by 1 % of a step", "none was waited for"],
)
def test_late_sleeps_are_warned_of_by_their_99th_percentile(
    late_s: float,
    num_late: int,
    has_slept: bool,
    num_warnings: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps = StepLog(None)
    for number in range(NUM_STEPS):
        steps.note(step(late_s if number < num_late else 0.0), has_slept)
    assert [line["event"] for line in log_lines(caplog)] == ["rehearsal too slow"] * num_warnings


def test_steps_are_written_as_lines_of_json(tmp_path: Path) -> None:
    steps = StepLog(str(tmp_path / "steps"))
    steps.note(step(0.002), has_slept=True)
    steps.close()
    (path,) = (tmp_path / "steps").iterdir()
    (line,) = map(json.loads, path.read_text().splitlines())
    assert line["late_s"] == 0.002 and line["has_slept"] and line["prefills"] == [[5, 0]]
    assert line["step_s"] == pytest.approx(0.05)
