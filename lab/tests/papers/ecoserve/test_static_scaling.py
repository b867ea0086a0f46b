"""Static scaling: the goodput of four instances relative to one."""

import pytest

from macroserve_lab.papers.ecoserve import figures
from macroserve_lab.papers.ecoserve.cases import experiments
from macroserve_lab.papers.ecoserve.figures import LARGER, SCALED, SCALING


def test_static_scaling_compares_four_instances_with_one():
    measured = {each.key: each.experiment for each in figures.STATIC_SCALING.measurements}
    values = {key: each.scenario.cluster.num_instances**1.1 for key, each in measured.items()}
    for size in (1, 2, 4):
        values[SCALING[LARGER, "ecoserve", size].key] = 3.0 * size**1.2
    rows = {(row.case, row.strategy): row for row in figures.STATIC_SCALING.rows(values)}
    gain = rows["CodeLlama-34B, 4 instances over 1", "ecoserve"]
    assert (gain.ours, gain.paper) == (pytest.approx(4**1.1), 5.6)
    gain = rows["Qwen2-72B, 4 instances over 1", "ecoserve"]
    assert (gain.ours, gain.paper, gain.is_summary) == (pytest.approx(4**1.2), None, True)
    assert rows["CodeLlama-34B, 4 instances over 1", "prefill-first"].paper is None
    smaller, larger = figures.STATIC_SCALING.panels(values)
    line = [(size, pytest.approx(size**1.1)) for size in (1, 2, 4, 8)]
    assert smaller.lines["ecoserve"] == line
    assert larger.lines["prefill-first"] == line[:3]


def test_static_scaling_has_the_clusters_devices_at_most():
    clusters = [each.experiment.scenario.cluster for each in figures.STATIC_SCALING.measurements]
    ranks = {each.model.num_layers: each.ranks for each in clusters}
    assert ranks == {48: 4, 80: 8}, "CodeLlama-34B and Qwen2-72B"
    assert max(each.ranks * each.num_instances for each in clusters) == 32
    assert len(figures.SIZES[SCALED]) == 4


def test_four_instances_of_the_larger_model_serve_more_than_four_times_one():
    """Figure 9, section 4.3: what EcoServe gains by instances that take turns."""
    duration_s, rate = 90.0, 1.6
    alone, four = (
        experiments(LARGER, "ecoserve", size)[0].serve(size * rate, duration_s).attainment
        for size in (1, 4)
    )
    assert alone < 0.9 < four
