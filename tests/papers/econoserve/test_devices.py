"""DistServe's goodput is held with few devices."""

from dataclasses import replace

import pytest

from macroserve.core.request import Request
from macroserve.papers.econoserve import devices
from macroserve.papers.econoserve.cases import MODELS, SERVED, TRACES
from macroserve.sim.device import SimRequest


def test_completed_rule_allows_twice_the_time_alone():
    slo_rule = devices.Completed(prompt_s=0.5, token_s=0.01)
    record = SimRequest(Request("a", 100.0, 10, 50, SERVED), 50)
    record.emit((101.0, *[101.0] * 48, 102.0))
    assert slo_rule(record)
    record.last_s = 102.001
    assert not slo_rule(record)


def test_completed_rule_time_grows_with_the_model():
    small, large = (devices.Completed.of(model, TRACES[1]) for model in MODELS[::2])
    assert 0.0 < small.token_s < small.prompt_s
    assert small.token_s < large.token_s < 10 * small.token_s


def test_device_counts_are_compared_with_distserve():
    measured = devices.measurements()
    for each in measured:
        other = each.goodput.experiment.scenario
        assert other.cluster.num_instances == len(each.experiments) == devices.NUM_INSTANCES
        assert other.high_priority_ratio == 0.5
    values = {each.goodput.key: 20.0 for each in measured} | {each.key: 4 for each in measured}
    rows = {row.case: row for row in devices.rows(values) if row.paper}
    assert rows["OPT-13B"].ours == pytest.approx(75.0)
    assert rows["OPT-13B"].paper == 73.0


def test_fewest_instances_hold_the_goodput_of_distserve():
    each = devices.measurements()[0]
    goodput = replace(each.goodput, duration_s=10.0, lowest=20.0, highest=20.0)
    held = replace(each, goodput=goodput).measure(0)
    fewest = held[each.key]
    assert 1 < fewest < devices.NUM_INSTANCES
