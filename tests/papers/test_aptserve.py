"""Apt-Serve's figures: the cases, the levels, and what stands beside what."""

import pytest

from macroserve.papers import aptserve
from macroserve.sim.hardware.step_time import StepTime
from macroserve.sim.results import as_aptserve


def test_aptserve_measurements_judge_as_the_paper_and_fit_the_devices():
    measured = [*aptserve.throughput_measurements(), *aptserve.ablation_measurements()]
    keys = [each.key for each in measured]
    assert len(keys) == len(set(keys))
    for each in measured:
        experiment = each.experiment
        assert experiment.scenario.slo_rule is as_aptserve
        cluster = experiment.scenario.cluster
        assert cluster.device.name == "A100-40GB" and cluster.num_instances == 1
        assert cluster.num_kv_tokens > 2048
        config = cluster.instance_spec(experiment.scenario.strategy, experiment.scenario.slo).config
        assert config.max_model_len == 2048


def test_aptserve_rates_are_compared_case_by_case():
    values = {each.key: 2.0 for each in aptserve.throughput_measurements()}
    for key in values:
        if key.endswith(" prefill-first"):
            values[key] = 1.0 if "HumanEval" in key else 0.5
    rows = {(row.case, row.strategy): row for row in aptserve.throughput_rows(values)}
    row = rows["90 %, all cases", "aptserve over prefill-first"]
    assert (row.ours, row.paper) == (pytest.approx((2 + 4 + 4) / 3), 2.3)
    assert rows["60 %, all cases", "aptserve over fastgen"].ours == pytest.approx(1.0)
    row = rows["90 %, at most", "aptserve over prefill-first"]
    assert (row.ours, row.paper) == (pytest.approx(4.0), 4.0)


def test_aptserve_ablation_has_all_cells_of_both_tables():
    values = {each.key: 0.5 for each in aptserve.ablation_measurements()}
    rows = aptserve.ablation_rows(values)
    printed = [row for row in rows if row.paper is not None]
    assert len(printed) == 12 * 3
    first = printed[0]
    assert (first.strategy, first.paper, first.ours) == ("aptserve, KV only", 99.5, 50.0)
    assert {row.paper for row in printed if row.strategy == "prefill-first"} >= {26.4, 4.2}


def test_aptserve_engine_takes_the_time_that_the_paper_gives():
    """Section 6.6: about 120 ms for a decode iteration of 50 requests."""
    experiment = aptserve.ablation_measurements()[0].experiment
    cluster = experiment.scenario.cluster
    step = StepTime(cluster.shape, cluster.device, cluster.link, aptserve.PAPERS_HOST)
    assert step.seconds([], 50, 50 * 250) == pytest.approx(0.12, rel=0.05)
