"""The scheduler's own time is compared with that of vLLM as the papers measured it."""

from dataclasses import replace

import pytest

from macroserve_lab.papers.econoserve import figures
from macroserve_lab.papers.econoserve.cases import TRACES


def test_overhead_of_each_system_is_in_points_over_the_baseline():
    measured = figures.OVERHEAD.measurements
    assert len({each.key for each in measured}) == 3 * 10
    values = {each.key: 0.02 for each in measured}
    for trace, share in zip(TRACES, (0.05, 0.03, 0.04), strict=True):
        values[f"overhead {trace.workload} with all"] = share
    rows = {(row.case, row.strategy): row for row in figures.OVERHEAD.rows(values)}
    row = rows["OPT-13B, all traces", "with all over prefill-first"]
    assert (row.ours, row.paper) == (pytest.approx(2.0), 2.93)
    assert rows["OPT-13B, Alpaca", "with all"].ours == pytest.approx(5.0)


def test_overhead_of_the_motivations_schedulers_is_a_share_of_their_time():
    values = {each.key: 0.02 for each in figures.OVERHEAD.measurements}
    values["overhead Alpaca multires"] = 0.05
    rows = {(row.case, row.strategy): row for row in figures.OVERHEAD.rows(values)}
    for name, ours, paper in (("multires", 3.0, 34.0), ("fastserve", 2.0, 17.0)):
        row = rows["OPT-13B, all traces", name]
        assert (row.ours, row.paper) == (pytest.approx(ours), paper)


def test_overhead_of_a_run_is_a_share_of_its_steps():
    each = figures.OVERHEADS[TRACES[1], "with all"]
    ((key, share),) = replace(each, duration_s=5.0).measure(0).items()
    assert key == each.key
    assert share > 0.0
