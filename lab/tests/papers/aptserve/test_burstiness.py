"""Bursty arrivals: ratios of Apt-Serve's attainment to baselines'."""

import pytest

from macroserve_lab.papers.aptserve import figures


def test_burstiness_has_the_rates_of_the_paper_over_as_many_requests():
    measured = figures.BURSTINESS.measurements
    assert len({each.key for each in measured}) == len(measured) == 3 * 3 * 3
    assert {each.rate for each in measured} == {3.8, 9.0, 1.5}
    assert {each.experiment.variation for each in measured} == {1, 5, 10}
    assert all(each.rate * each.duration_s == pytest.approx(1000) for each in measured)


def test_burstiness_compares_bursty_arrivals_alone():
    values = {each.key: 0.5 for each in figures.BURSTINESS.measurements}
    values[figures.BURSTS["ShareGPT", 1, "prefill-first"].key] = 0.01
    values[figures.BURSTS["LongBench", 5, "prefill-first"].key] = 0.125
    values[figures.BURSTS["HumanEval", 10, "sarathi"].key] = 0.0
    rows = {(row.case, row.strategy): row for row in figures.BURSTINESS.rows(values)}
    over = rows["bursty arrivals, at most", "aptserve over prefill-first"]
    assert (over.ours, over.paper) == (pytest.approx(4.0), 7.5)
    most = rows["bursty arrivals, at most", "aptserve over sarathi"]
    assert most.ours == pytest.approx(500.0), "no request counts as one of a thousand"
    assert rows["ShareGPT, 3.8 requests/s, CV 1", "prefill-first"].ours == pytest.approx(1.0)
    panels = {panel.title: panel for panel in figures.BURSTINESS.panels(values)}
    line = panels["OPT-13B, LongBench, 1.5 requests/s"].lines["prefill-first"]
    assert line == [(1, 0.5), (5, 0.125), (10, 0.5)]
