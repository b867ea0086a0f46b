"""The figure reports how full the cache is and how much of the compute steps use."""

from dataclasses import replace

import pytest

from macroserve.sim.results import AT_END
from macroserve_lab.disaggregation.topology import Transfer
from macroserve_lab.papers.econoserve import figures
from macroserve_lab.papers.econoserve.cases import MODELS, cluster
from macroserve_lab.papers.measurements import Metric, point

OPT_13B, LLAMA_33B, _ = MODELS


def test_utilization_is_compared_by_the_mean_of_all_rates():
    first, *others = figures.USE_RATES
    tokens_per_s = cluster(OPT_13B).device.roof.flops_per_s / 2
    tokens_per_s /= cluster(OPT_13B).shape.active_parameters
    values = {}
    for (_, name, rate), run in figures.USES.items():
        share = 0.1 if rate == first else 0.9 if name == "econoserve" else 0.7
        values[point(run.key, Metric.KV_USE)] = share
        values[point(run.key, Metric.FORWARD_TOKENS)] = share / 2 * tokens_per_s
    rows = {(row.case, row.strategy, row.metric): row for row in figures.UTILISATION.rows(values)}
    share = len(others) / (1 + len(others))
    for resource, points, paper in (("cache", 20, 27.0), ("compute", 10, 28.0)):
        row = rows[
            "OPT-13B, ShareGPT, vLLM's",
            "econoserve over prefill-first",
            f"points of the {resource}",
        ]
        assert (row.ours, row.paper) == (pytest.approx(points * share), paper)
    assert len([row for row in rows.values() if row.paper is not None]) == 2 * 3 * 4
    panels = figures.UTILISATION.panels(values)
    assert len(panels) == 2 * 3
    assert all(set(panel.lines) == set(figures.USE_SYSTEMS) for panel in panels)


def test_compute_of_an_instance_is_that_of_all_its_devices():
    values = {point(run.key, Metric.FORWARD_TOKENS): 1000.0 for run in figures.USES.values()}
    values |= {point(run.key, Metric.KV_USE): 0.0 for run in figures.USES.values()}
    rows = {(row.case, row.strategy, row.metric): row for row in figures.UTILISATION.rows(values)}
    found = rows["Llama-33B, 0.5 requests/s", "orca", "share of the compute"].ours
    # Two operations of each parameter and token, on two devices of 312 TFLOPS.
    assert found == pytest.approx(2 * 32.1e9 * 1000 / (2 * 312e12), rel=0.01)


def test_distserve_utilization_has_prefills_on_another_machine():
    scenarios = [
        run.experiment.scenario
        for (_, name, rate), run in figures.USES.items()
        if name == "distserve" and rate == figures.USE_RATES[0]
    ]
    assert len(scenarios) == 3
    for scenario in scenarios:
        topology = scenario.topology
        assert scenario.strategy.transfer is Transfer.NETWORK
        assert scenario.cluster.num_instances == 2
        assert topology.node(0) != topology.node(1)


def test_utilization_of_cache_and_compute_rises_with_the_rate():
    found = figures.USES[OPT_13B, "econoserve", 0.5].experiment
    outcomes = [found.serve(rate, 20.0, stop=AT_END) for rate in (0.5, 2.0, 6.0)]
    shares = [outcome.kv_use for outcome in outcomes]
    assert 0.0 < shares[0] < shares[1] < shares[2] < 1.0
    tokens_per_s = [Metric.FORWARD_TOKENS.of(outcome) for outcome in outcomes]
    assert 0.0 < tokens_per_s[0] < tokens_per_s[1] < tokens_per_s[2]


def test_each_run_of_the_figure_has_both_metrics():
    run = replace(figures.USES[OPT_13B, "sarathi", 0.5], duration_s=5.0)
    assert set(run.measure(0)) == {
        point(run.key, Metric.KV_USE),
        point(run.key, Metric.FORWARD_TOKENS),
    }
