"""Static scaling: what four instances serve, times what one serves."""

import pytest

from macroserve.papers.ecoserve import static_scaling


def test_static_scaling_compares_four_instances_with_one():
    measured = {each.key: each.experiment for each in static_scaling.measurements()}
    sizes = {each.scenario.cluster.num_instances for each in measured.values()}
    assert sizes == set(static_scaling.SIZES)
    values = {key: each.scenario.cluster.num_instances**1.1 for key, each in measured.items()}
    first = static_scaling.rows(values)[0]
    assert (first.ours, first.paper) == (pytest.approx(4**1.1), 5.6)
    (panel,) = static_scaling.panels(values)
    assert panel.lines["ecoserve"] == [(size, pytest.approx(size**1.1)) for size in (1, 2, 4, 8)]
