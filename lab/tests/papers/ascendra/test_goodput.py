"""Ascendra's goodput: the instances, and the compared values."""

import pytest

from macroserve_lab.papers.ascendra import figures


def test_ascendra_fleet_has_one_high_priority_instance_of_three():
    measured = figures.GOODPUT.measurements
    assert len({each.key for each in measured}) == 3 * 4
    for each in measured:
        experiment = each.experiment
        assert experiment.scenario.cluster.num_instances == 3
        papers_own = experiment.scenario.strategy.name == "ascendra"
        assert experiment.scenario.high_priority_ratio == (1 / 3 if papers_own else 0.0)


def test_ascendra_gains_are_percent_of_goodput():
    values = {each.key: 4.0 for each in figures.GOODPUT.measurements}
    values["Mistral-7B, ShareGPT4 ascendra"] = 5.0
    rows = {(row.case, row.strategy): row for row in figures.GOODPUT.rows(values)}
    row = rows["Mistral-7B, ShareGPT4", "ascendra over prefill-first"]
    assert (row.ours, row.paper) == (pytest.approx(25.0), 19.1)
    assert rows["Llama3.1-8B, LongBench", "ascendra over sarathi"].ours == pytest.approx(0.0)
