"""The states of instances and cells come from their reports."""

from typing import Any

import msgspec
import pytest
from support.instance_reports import busy, busy_cell

from macroserve.api.messages import InstanceReport
from macroserve.api.scheduling_state import (
    CellState,
    InstanceState,
    Share,
    StepTimes,
    cell_states,
    recent_refusals,
)
from macroserve.core.status import UNHEARD, InstanceStatus, Phase, Pool


def about(value: float) -> Any:
    return pytest.approx(value)


def state_of(report: InstanceReport) -> InstanceState:
    ((state,),) = [cell.instances for cell in cell_states([busy_cell("cell-0", report)])]
    return state


def test_instance_state_has_the_figures_of_its_report() -> None:
    assert state_of(busy(1, draining=True)) == InstanceState(
        name="instance-1",
        cell="cell-0",
        pool=Pool.LP,
        phase=Phase.PREFILL,
        phase_s=about(11.1),
        draining=True,
        num_running=21,
        num_waiting=6,
        oldest_wait_s=about(2.54),
        slack_p10_s=about(-0.688),
        kv_used=Share(621, 1000),
        hidden_used=Share(51, 1000),
        hits=Share(621, 1000),
        attained=Share(97, 100),
        steps=StepTimes(about(0.0223), about(0.0208)),
    )


def test_cell_state_sums_up_its_instances() -> None:
    idle = {"phase": Phase.IDLE, "oldest_wait_s": 0.0, "saved_tpot_p10_s": None, "step_s": None}
    report = busy_cell("cell-0", busy(10, idle), busy(2), busy(0))
    (cell,) = cell_states([report])
    assert [each.name for each in cell.instances] == ["instance-0", "instance-2", "instance-10"]
    assert cell == CellState(
        name="cell-0",
        instances=cell.instances,
        num_in_phase={Phase.DECODE: 2, Phase.IDLE: 1},
        oldest_wait_s=about(3.54),
        slack_p10_s=about(-1.688),
        kv_used=Share(3000 - 3 * 380 + 12 + 10, 3000),
        hidden_used=Share(50 + 52 + 60, 3000),
        hits=Share(77, 200),
        steps=StepTimes(about(0.0223), about(0.0208)),
    )


def test_cells_are_in_the_order_of_their_numbers() -> None:
    cells = cell_states(busy_cell(name) for name in ("cell-10", "cell-2"))
    assert [cell.name for cell in cells] == ["cell-2", "cell-10"]
    assert cells[0].steps is cells[0].slack_p10_s is cells[0].oldest_wait_s is None


def test_instance_before_its_first_report_has_no_phase() -> None:
    state = state_of(busy(1, age_s=1e6, status=msgspec.structs.asdict(UNHEARD)))
    assert (state.phase, state.phase_s, state.oldest_wait_s, state.steps) == (None,) * 4
    assert state.kv_used == Share(0, 0)


def test_phase_that_is_decided_ahead_of_the_present_batch_has_just_begun() -> None:
    assert state_of(busy(1, {"phase_s": -0.4})).phase_s == 0.0


def test_refusals_are_summed_over_cells_the_most_frequent_first() -> None:
    cells = (
        busy_cell("cell-0", recent_refused={"no_instance": 1, "ttft": 2, "memory": 1}),
        busy_cell("cell-1", recent_refused={"ttft": 5}),
    )
    assert recent_refusals(cells) == (("ttft", 7), ("memory", 1), ("no_instance", 1))


def test_status_with_the_scheduling_state_stays_small() -> None:
    """Instances push a status up to 20 times a second."""
    assert len(msgspec.json.encode(busy(1).status)) < 1000
    assert isinstance(busy(1).status, InstanceStatus)
