"""DistServe's goodput is held with few devices."""

from dataclasses import replace

import pytest

from macroserve.sim.hardware.devices import A100_80GB, H100
from macroserve_lab.papers.econoserve import figures


def test_device_counts_are_compared_with_distserve():
    for (setting, _), each in figures.FEWEST.items():
        other = each.goodput.experiment.scenario
        assert other.cluster.num_instances == len(each.experiments)
        assert other.high_priority_ratio == (1 / 3 if setting == "heterogeneous" else 0.5)
    values = {each.goodput.key: 20.0 for each in figures.FEWEST.values()}
    values |= {each.key: 4 for each in figures.FEWEST.values()}
    rows = {row.case: row for row in figures.DEVICES_FIGURE.rows(values) if row.paper}
    assert len(rows) == 3 + 2 + 1
    for case, ours, paper in (
        ("OPT-13B, homogeneous", 75.0, 73.0),
        ("OPT-13B, heterogeneous", 100 * 8 / 12, 61.0),
        ("Llama-33B, heterogeneous", 100 * 2 / 6, 57.0),
        ("Llama3.1-8B, large", 75.0, 77.0),
    ):
        assert (rows[case].ours, rows[case].paper) == (pytest.approx(ours), paper)


@pytest.mark.parametrize(("model", "num_prefill"), [(figures.OPT_13B, 4), (figures.LLAMA_33B, 2)])
def test_heterogeneous_distserve_prefills_on_the_h100s_of_one_node(model, num_prefill):
    found = figures.FEWEST["heterogeneous", model]
    scenario = found.goodput.experiment.scenario
    cluster = scenario.cluster
    assert (cluster.device, scenario.prefill_device) == (A100_80GB, H100)
    assert cluster.num_instances == 3 * num_prefill
    nodes = [scenario.topology.node(index) for index in range(cluster.num_instances)]
    assert nodes.index(1) == num_prefill
    assert {each.scenario.cluster.device for each in found.experiments} == {A100_80GB}


def test_fewest_instances_hold_the_goodput_of_distserve():
    each = figures.FEWEST["homogeneous", figures.OPT_13B]
    goodput = replace(each.goodput, duration_s=10.0, lowest=20.0, highest=20.0)
    held = replace(each, goodput=goodput).measure(0)
    fewest = held[each.key]
    assert 1 < fewest < figures.NUM_INSTANCES
