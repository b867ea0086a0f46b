"""Ascendra beyond capacity: dropped requests, and the gain."""

import pytest

from macroserve_lab.papers.ascendra import figures


def test_strategies_under_overload_all_drop_late_requests():
    measured = figures.OVERLOAD.measurements
    assert all(each.experiment.scenario.drop_late and each.duration_s == 600 for each in measured)
    values = {each.key: 0.4 for each in measured}
    values["overload 12 ascendra"] = 0.6
    rows = {(row.case, row.metric): row for row in figures.OVERLOAD.rows(values)}
    row = rows["12 requests/s", "times served within the SLOs"]
    assert (row.ours, row.paper) == (pytest.approx(1.5), 1.74)
