"""The schedulers of the paper's motivation are compared in pairs."""

import pytest

from macroserve_lab.papers.econoserve import figures
from macroserve_lab.papers.econoserve.cases import TRACES
from macroserve_lab.papers.measurements import Metric, point


def test_each_scheduler_knows_all_lengths():
    runs = figures.KNOWING
    assert len({run.key for run in runs.values()}) == len(runs) == 3 * 9
    assert {run.experiment.foresight for run in runs.values()} == {1.0}
    for (trace, name), run in runs.items():
        assert run.rate == runs[trace, "orca"].rate
        assert run.experiment.scenario.cluster.num_instances == (2 if name == "distserve" else 1)


@pytest.mark.parametrize("name", ["orca", "srtf", "fastserve"])
def test_max_allocation_has_seats_for_the_longest_alone(name):
    assert figures.KNOWING[TRACES[0], name].experiment.scenario.cluster.max_num_seqs == 3
    assert figures.KNOWING[TRACES[0], "sarathi"].experiment.scenario.cluster.max_num_seqs == 256


def test_pair_of_schedulers_is_compared_in_the_mean_of_the_traces():
    values = {point(run.key, metric): 2.0 for run in figures.KNOWING.values() for metric in Metric}
    values[point(figures.KNOWING[TRACES[0], "multires"].key, Metric.COMPLETION)] = 1.0
    rows = {
        (row.case, row.strategy, row.metric): row for row in figures.SCHEDULERS_FIGURE.rows(values)
    }
    metric = "% more completion time in s"
    row = rows["OPT-13B, all traces", "multires over sarathi", metric]
    assert (row.ours, row.paper) == (pytest.approx(-50 / 3), -35.0)
    row = rows["OPT-13B, Alpaca", "multires over sarathi", metric]
    assert (row.ours, row.paper) == (pytest.approx(-50.0), None)
    printed = [row for row in rows.values() if row.paper is not None]
    assert len(printed) == len(figures.MORE) + 2
    row = rows["OPT-13B, all traces", "sarathi", "preemptions per request"]
    assert (row.ours, row.paper) == (2.0, 0.67)
