"""The ceiling is the rate that the devices can serve at all, compared to the goodput."""

import pytest
from lab_support.made_up import made_up

from macroserve_lab.papers.econoserve.cases import SERVED
from macroserve_lab.papers.measurements import Ceiling, CloserLook
from macroserve_lab.papers.unified import figures
from macroserve_lab.papers.unified.benchmarks import UNIFIED


def test_ceiling_is_measured_without_targets():
    ceilings = [each for each in figures.CEILING.measurements if isinstance(each, Ceiling)]
    assert {each.experiment.scenario.slo for each in ceilings} == {SERVED}
    strategies = {each.experiment.scenario.strategy.name for each in ceilings}
    assert strategies == {"prefill-first", "sarathi"}


def test_ceiling_figure_reuses_the_measurements_of_the_goodput_figure():
    """The goodput need not be measured a second time."""
    looks = [each for each in figures.CEILING.measurements if isinstance(each, CloserLook)]
    assert [each.key for each in looks] == [case.key(UNIFIED) for case in figures.BY_GOODPUT]
    assert all(each in figures.GOODPUT.measurements for each in looks)


def test_ceiling_of_a_case_is_the_best_of_all_strategies():
    values = made_up(figures.CEILING.measurements, 2.0)
    benchmark = figures.BY_GOODPUT[0]
    values[benchmark.key(UNIFIED)] = 3.0
    values[f"{benchmark.key('sarathi 512')}, ceiling"] = 4.0
    share, best, ours = figures.CEILING.rows(values)[:3]
    assert (share.ours, best.ours, ours.ours) == (pytest.approx(0.75), 4.0, 3.0)
