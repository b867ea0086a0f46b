"""DistServe's goodput is held with few devices."""

from dataclasses import replace

import pytest

from macroserve.papers.econoserve import devices


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
