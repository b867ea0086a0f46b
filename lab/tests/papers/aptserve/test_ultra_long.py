"""Long contexts: the models, their devices, and the compared values."""

import pytest

from macroserve.workload.datasets import WORKLOADS
from macroserve_lab.papers.aptserve import figures
from macroserve_lab.papers.aptserve.figures import LONG, LONG_RANKS, SHAPES
from macroserve_lab.slo_rules import as_aptserve


def test_ultra_long_contexts_fit_the_engines():
    """Section 6.7: 1, 2 and 4 devices, so that at least ten requests fit a batch."""
    assert LONG_RANKS == {"WikiText": 1, "Arxiv": 2, "BookCorpus, 24k": 4}
    for (_, name, _), curve in LONG.items():
        prompt, output = WORKLOADS[name].prompt, WORKLOADS[name].output
        scenario = curve.experiment.scenario
        cluster = scenario.cluster
        assert (scenario.slo_rule, cluster.ranks) == (as_aptserve, LONG_RANKS[name])
        assert prompt.most + output.most < cluster.max_model_len <= cluster.max_batch_tokens
        assert cluster.num_kv_tokens > 10 * (prompt.mean + output.mean)


def test_ultra_long_models_hold_more_keys_and_values_than_hidden_states():
    for shape in SHAPES.values():
        cluster = figures.long_experiment(shape, "WikiText", "aptserve").scenario.cluster
        assert cluster.shape.kv_size < cluster.shape.hidden_size


def test_yi_has_its_published_size():
    """Yi (arXiv 2403.04652), table 1 and its model card: 6B parameters, 4 heads of keys and
    values."""
    shape = SHAPES["Yi-6B"]
    assert shape.weight_bytes / 2e9 == pytest.approx(6.06, rel=0.005)
    assert shape.kv_bytes_per_token == 2 * 32 * 4 * 128 * 2


def test_ultra_long_gains_are_means_over_the_rates():
    values = {
        f"{curve.key} at {rate:g} requests/s": 0.5
        for curve in LONG.values()
        for rate in curve.rates
    }
    curve = LONG["Yi-6B", "BookCorpus, 24k", "aptserve"]
    for rate in curve.rates[1:]:
        values[f"{curve.key} at {rate:g} requests/s"] = 1.0
    rows = {(row.case, row.strategy): row for row in figures.ULTRA_LONG.rows(values)}
    over = "aptserve over prefill-first"
    assert rows["Yi-6B, BookCorpus, 24k", over].ours == pytest.approx(50 * 4 / 5)
    assert rows["Yi-6B, Arxiv", over].ours == pytest.approx(0.0)
    bounds = [row for row in figures.ULTRA_LONG.rows(values) if row.paper is not None]
    assert {row.case for row in bounds} == {"Yi-6B, BookCorpus, 24k, 0.5 requests/s"}
    assert [(row.ours, row.paper) for row in bounds] == [(pytest.approx(50.0), 60.0)] * 2
    panels = {panel.title: panel for panel in figures.ULTRA_LONG.panels(values)}
    assert panels["Yi-6B, BookCorpus, 24k"].lines["aptserve"][:2] == [(0.5, 0.5), (0.75, 1.0)]
