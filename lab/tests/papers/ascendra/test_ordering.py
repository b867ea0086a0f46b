"""Ascendra's orders where half of the requests have loose targets."""

import pytest

from macroserve.core.request import Slo
from macroserve.core.strategy import Ordering
from macroserve_lab.papers.ascendra import figures
from macroserve_lab.papers.ascendra.cases import CASES, CHAT


def test_half_of_the_requests_have_targets_ten_times_as_loose() -> None:
    measured = {each.key: each for each in figures.ORDERING.measurements}
    assert len(measured) == len(CASES) * len(Ordering)
    experiment = measured[f"ordering {CHAT.name} sjf"].experiment
    assert experiment.scenario.strategy.ordering is Ordering.SJF
    (loose,) = experiment.classes.classes
    assert (loose.slo, loose.share) == (Slo(10.0, 1.5), 0.5)


def test_gains_are_those_of_deadlines_and_slack_over_arrivals() -> None:
    values = {each.key: 4.0 for each in figures.ORDERING.measurements}
    values[f"ordering {CHAT.name} edf"] = 5.0
    values[f"ordering {CHAT.name} slack"] = 6.0
    gains = {
        (row.case, row.strategy): row.ours
        for row in figures.ORDERING.rows(values)
        if row.is_summary
    }
    assert gains[CHAT.name, "EDF over FCFS"] == pytest.approx(25.0)
    assert gains[CHAT.name, "SLACK over FCFS"] == pytest.approx(50.0)
    assert sum(gains.values()) == pytest.approx(75.0)


@pytest.mark.parametrize("rate", [13.0])
def test_deadlines_hold_more_of_mixed_targets_than_arrivals(rate: float) -> None:
    """The claim of section 3.3, in the simulator: out of order, the urgent ones are in time."""
    measured = {each.key: each for each in figures.ORDERING.measurements}
    shares = {
        order: measured[f"ordering {CHAT.name} {order}"].experiment.serve(rate, 60.0).attainment
        for order in (Ordering.EDF, Ordering.FCFS)
    }
    assert shares[Ordering.EDF] > shares[Ordering.FCFS] + 0.02
