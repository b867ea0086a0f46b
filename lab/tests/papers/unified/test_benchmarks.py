"""Strategies are measured on the benchmark of each paper and compared with the best."""

import pytest
from lab_support.made_up import made_up

from macroserve.core.strategies import STRATEGIES
from macroserve_lab.papers.measurements import LOOKED_AT
from macroserve_lab.papers.unified import benchmarks, figures
from macroserve_lab.papers.unified.benchmarks import ALONE, BENCHMARKS, BEST_OTHER, DROPPING


def test_unified_benchmarks_run_every_strategy_for_ten_minutes():
    assert len(BENCHMARKS) == 18 + 9 + 9 + 3
    measured = benchmarks.measurements(BENCHMARKS)
    assert len({each.key for each in measured}) == len(measured)
    for benchmark in BENCHMARKS:
        searches = benchmark.best_other().searches
        assert all(search.duration_s == 600.0 for search in searches)
        strategies = [search.experiment.scenario.strategy.name for search in searches]
        assert strategies[0] == benchmark.own
        assert {*strategies, "unified", "vllm"} == set(STRATEGIES)
        chunks = [
            search.experiment.scenario.tuning.chunk_tokens
            for search in searches
            if search.experiment.scenario.strategy.name == "sarathi"
        ]
        in_turn = [search for search in searches if search.key.endswith(", in turn")]
        if benchmark.experiment.scenario.cluster.num_instances == 1:
            assert (chunks, in_turn) == (list(benchmarks.CHUNKS), [])
        else:
            assert chunks == 2 * list(benchmarks.CHUNKS)
            assert {search.experiment.scenario.strategy.name for search in in_turn} == {
                "prefill-first",
                "sarathi",
            }


def test_unified_gains_are_over_the_papers_own_the_best_other_and_vllm():
    values = made_up(benchmarks.measurements(BENCHMARKS), 10.0)
    first, second, third = (each for each in BENCHMARKS if each.paper == "ascendra")
    for benchmark in (first, second, third):
        values[benchmark.key("unified")] = 20.0
        values[benchmark.key(ALONE)] = 8.0
    values[first.key("sarathi 512")] = values[first.key(BEST_OTHER)] = 16.0
    values[first.key("ascendra")] = 5.0
    values[first.key(DROPPING)] = 99.0
    gains = {
        f"{row.case} {row.strategy}": row.ours
        for row in (claim.row(values) for claim in benchmarks.gains(BENCHMARKS))
    }
    assert gains["ascendra, mean unified over its own strategy"] == pytest.approx((4 + 2 + 2) / 3)
    assert gains["ascendra, worst case unified over its own strategy"] == 2.0
    assert gains["ascendra, worst case unified over the best other"] == pytest.approx(1.25)
    assert gains["ascendra, mean unified over prefill-first"] == pytest.approx(2.5)
    assert gains["ecoserve, mean unified over the best other"] == 1.0
    rates = {
        f"{row.case} {row.strategy}": row.ours
        for row in (claim.row(values) for claim in benchmarks.rates(BENCHMARKS))
    }
    assert rates[f"ascendra, {first.name} {DROPPING}"] == 99.0
    assert rates[f"ascendra, {first.name} the best other: sarathi 512"] == 16.0
    assert rates[f"ascendra, {first.name} prefill-first"] == 8.0


def test_unified_gain_over_vllm_is_not_hidden_by_short_requests():
    values = made_up(benchmarks.measurements(BENCHMARKS), 10.0)
    for benchmark in BENCHMARKS:
        if benchmark.paper == "ecoserve" and "Alpaca" not in benchmark.name:
            values[benchmark.key("unified")] = 20.0
    means = {
        row.case: row.ours
        for row in (claim.row(values) for claim in benchmarks.gains(BENCHMARKS))
        if row.strategy == "unified over prefill-first"
    }
    assert means["ecoserve but Alpaca, mean"] == 2.0
    assert means["ecoserve, mean"] == pytest.approx((12 * 2 + 6) / 18)


def test_unified_goodput_is_reported_with_its_closer_look():
    measured = figures.GOODPUT.measurements
    values = made_up(measured, 10.0)
    for look in figures.LOOKS.values():
        for metric in LOOKED_AT:
            values[f"{look.key}, {metric}"] = 0.75
    rows = [row for row in figures.GOODPUT.rows(values) if row.ours == 0.75]
    assert len(rows) == 5 * len(figures.LOOKS) == 5 * 30
    assert {row.strategy for row in rows} == {"unified"}
