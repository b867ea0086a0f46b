"""Totals of an instance's steps: forward size, use of compute, preemptions."""

import pytest
from support.outcomes import scenario

from macroserve.core.batch import Batch, BatchKind, Prefill
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.device import SimRequest
from macroserve.sim.instance import StepOutcome
from macroserve.sim.results import AT_END, RunResult, StepTotals
from macroserve.sim.simulation_trace import SimulationTrace
from macroserve.workload.arrivals import Arrival
from macroserve_lab.papers.measurements import Metric

MIXED = Batch(BatchKind.MIXED, (Prefill("a", 100), Prefill("b", 20)), ("c", "d"), ("e",))
DECODES = Batch(BatchKind.DECODE, (), ("c", "d"))
ENDED: list[SimRequest] = [object()]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("outcome", "totals"),
    [
        (StepOutcome(MIXED, 1.0, 1.5, 1, []), StepTotals(1, 122, 1, 1)),
        (StepOutcome(DECODES, 1.0, 3.0, 8, []), StepTotals(8, 16, 0, 8)),
        (StepOutcome(DECODES, 1.0, 3.0, 8, ENDED), StepTotals(8, 16, 0, 7)),
    ],
)
def test_totals_count_each_step_of_a_batch(outcome, totals):
    assert StepTotals().plus(outcome) == totals
    assert totals.plus(outcome) == StepTotals(*[2 * each for each in totals])


def test_result_has_the_means_of_all_steps():
    steps = (StepTotals(10, 100, 3, 5), StepTotals(30, 3000, 1, 25))
    found = RunResult(8, 8, True, steps=steps, steps_s=10.0)
    assert Metric.FORWARD_SIZE.of(found) == 3100 / 40
    assert Metric.FORWARD_TOKENS.of(found) == (10.0 + 300.0) / 2
    assert Metric.PREEMPTIONS.of(found) == 0.5
    assert Metric.WITHOUT_END.of(found) == 0.75


class _Ends(SimulationTrace):
    """A trace with the end and the tokens of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[tuple[float, int]] = []

    def stepped(self, instance: str, outcome: StepOutcome) -> None:
        self.ends.append((outcome.end_s, outcome.num_steps * outcome.batch.num_tokens))


def test_steps_count_from_the_first_request_that_counts_to_the_last_arrival():
    arrivals = [Arrival(0.5 * index, 300, 200) for index in range(12)]
    trace, served = _Ends(), scenario(STRATEGIES["vllm"])
    outcome = served.serve(arrivals, num_before=4, stop=AT_END, trace=trace)
    num_tokens = sum(num for end_s, num in trace.ends if 2.0 <= end_s < 5.5)
    assert sum(each.num_tokens for each in outcome.steps) == num_tokens > 0
    assert outcome.steps_s == 3.5
    assert num_tokens < sum(num for _, num in trace.ends) / 2
    assert served.serve(arrivals, num_before=4).steps == ()
