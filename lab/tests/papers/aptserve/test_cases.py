"""Apt-Serve's setup: the rule of its targets, and step times."""

import pytest

from macroserve.sim.hardware.step_time import StepTime
from macroserve_lab.papers.aptserve import cases, figures
from macroserve_lab.slo_rules import as_aptserve


def test_aptserve_measurements_judge_as_the_paper_and_fit_the_devices():
    measured = [*figures.THROUGHPUT.measurements, *figures.ABLATION.measurements]
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


def test_aptserve_engine_takes_the_time_that_the_paper_gives():
    """Section 6.6: about 120 ms for a decode iteration of 50 requests."""
    experiment = next(iter(figures.CELLS.values())).experiment
    cluster = experiment.scenario.cluster
    step = StepTime(cluster.shape, cluster.device, cluster.link, cases.PAPERS_HOST)
    assert step.seconds([], 50, 50 * 250) == pytest.approx(0.12, rel=0.05)
