"""The ablation reports what each part of EconoServe saves and adds."""

from dataclasses import replace

import pytest

from macroserve.core.strategies import STRATEGIES
from macroserve_lab.papers.econoserve import figures
from macroserve_lab.papers.econoserve.cases import MODELS, TRACES
from macroserve_lab.papers.econoserve.completed import Completed
from macroserve_lab.papers.measurements import Metric, point


def test_each_variant_of_the_ablation_has_one_part_more():
    runs = figures.ABLATION_RUNS
    assert len({run.key for run in runs.values()}) == len(runs) == 3 * 3 * 5
    strategies = {
        name: runs[MODELS[0], TRACES[0], name].experiment.scenario.strategy
        for name in figures.ABLATED
    }
    for before, after, changed in (
        ("coupled", "decoupled", ("batch", "queues_responses")),
        ("decoupled", "synced", ("group_by_length",)),
        ("synced", "ordered", ("ordering",)),
        ("ordered", "with all", ("kv_lending",)),
    ):
        with_part = {name: getattr(strategies[after], name) for name in changed}
        assert strategies[before] != strategies[after] == replace(strategies[before], **with_part)
    assert strategies["with all"] == STRATEGIES["econoserve"]
    assert strategies["coupled"].exact_kv and not strategies["coupled"].queues_responses


def test_ablation_counts_requests_in_time_by_their_completion():
    for (model, trace, _), run in figures.ABLATION_RUNS.items():
        assert run.experiment.scenario.slo_rule == Completed.of(model, trace)


VALUES = {
    Metric.COMPLETION: (20.0, 16.0, 10.0, 8.0, 6.0),
    Metric.TPOT: (0.4, 0.2, 0.2, 0.16, 0.12),
    Metric.ATTAINMENT: (0.2, 0.4, 0.5, 0.5, 1.0),
    Metric.THROUGHPUT: (1.0, 1.0, 2.0, 4.0, 3.0),
}
"""Values of each variant, in the order of the ablation."""


@pytest.mark.parametrize(
    ("part", "metric", "ours", "paper"),
    [
        ("decoupling", "% less completion time in s", 20.0, 28.0),
        ("synced batching", "% less completion time in s", 37.5, 19.0),
        ("ordering", "% less completion time in s", 20.0, 7.0),
        ("KV pipelining", "% less completion time in s", 25.0, 29.0),
        ("synced batching", "% less mean TPOT in s", 0.0, 17.0),
        ("ordering", "% less mean TPOT in s", 20.0, 5.0),
        ("KV pipelining", "% less mean TPOT in s", 25.0, 21.0),
        ("synced batching", "% more attainment", 20.0, 16.0),
        ("ordering", "% more attainment", 0.0, 21.0),
        ("KV pipelining", "% more attainment", 50.0, 17.0),
        ("synced batching", "% more requests/s", 50.0, 36.0),
        ("ordering", "% more requests/s", 50.0, 17.0),
        ("KV pipelining", "% more requests/s", 100 * (1 - 4 / 3), 62.0),
        ("with all", "mean TPOT in s", 0.12, 0.141),
    ],
)
def test_ablation_compares_each_part_with_the_variant_without_it(part, metric, ours, paper):
    values = {
        point(run.key, each): value
        for each, row in VALUES.items()
        for name, value in zip(figures.ABLATED, row, strict=True)
        for (_, _, variant), run in figures.ABLATION_RUNS.items()
        if variant == name
    }
    found = {
        (r.case, r.strategy, r.metric): (r.ours, r.paper) for r in figures.ABLATION.rows(values)
    }
    assert found["all models and traces", part, metric] == (pytest.approx(ours), paper)
    if part in figures.PARTS:
        assert found["OPT-13B, BookCorpus", part, metric] == (pytest.approx(ours), None)


def test_part_without_which_no_request_is_in_time_gains_nearly_all():
    values = {
        point(run.key, metric): 0.0 for run in figures.ABLATION_RUNS.values() for metric in Metric
    }
    values |= {
        point(run.key, Metric.ATTAINMENT): 0.5
        for (_, _, name), run in figures.ABLATION_RUNS.items()
        if name == "with all"
    }
    found = {(r.case, r.strategy, r.metric): r.ours for r in figures.ABLATION.rows(values)}
    assert found["all models and traces", "KV pipelining", "% more attainment"] == 99.8
    assert found["all models and traces", "ordering", "% more attainment"] == 0.0
