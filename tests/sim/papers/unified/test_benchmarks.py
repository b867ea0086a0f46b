"""Every paper's benchmark, every strategy, and what of them is the best."""

import pytest

from macroserve.core.strategy import STRATEGIES
from macroserve.sim.papers.measurements import LOOKED_AT, Goodput
from macroserve.sim.papers.unified import benchmarks, goodput
from macroserve.sim.papers.unified.benchmarks import BENCHMARKS, DROPPING


def test_each_benchmark_has_every_strategy_for_ten_minutes():
    assert len(BENCHMARKS) == 18 + 9 + 9 + 3
    measured = benchmarks.measurements(BENCHMARKS)
    assert len({each.key for each in measured}) == len(measured)
    assert all(each.duration_s == 600.0 for each in measured)
    for benchmark in BENCHMARKS:
        own = [each for each in measured if each.key.startswith(benchmark.key(""))]
        named = {each.key.removeprefix(benchmark.key("")).split(" ")[0] for each in own}
        assert set(STRATEGIES) <= {name.rstrip(",") for name in named}
        if benchmark.limit_s is None:
            sarathi = next(each for each in own if each.key == benchmark.key("sarathi"))
            assert isinstance(sarathi, Goodput)
            chunks = [each.setup.chunk_tokens for each in sarathi.experiments]
            assert chunks == list(benchmarks.CHUNKS)


def test_gains_are_over_the_papers_own_and_over_the_best():
    values = {each.key: 10.0 for each in benchmarks.measurements(BENCHMARKS)}
    first, second, third = (each for each in BENCHMARKS if each.paper == "ascendra")
    for benchmark in (first, second, third):
        values[benchmark.key("unified")] = 20.0
    values[first.key("vllm")] = 16.0
    values[first.key("ascendra")] = 5.0
    values[first.key(DROPPING)] = 99.0
    gains = {
        f"{row.case} {row.strategy}": row.ours
        for row in benchmarks.gains("goodput", BENCHMARKS, values)
    }
    assert gains["ascendra, mean unified over its own strategy"] == pytest.approx((4 + 2 + 2) / 3)
    assert gains["ascendra, worst case unified over its own strategy"] == 2.0
    assert gains["ascendra, worst case unified over the best other"] == pytest.approx(1.25)
    assert gains["ecoserve, mean unified over the best other"] == 1.0
    rates = {
        f"{row.case} {row.strategy}": row.ours
        for row in benchmarks.rates("goodput", BENCHMARKS, values)
    }
    assert rates[f"ascendra, {first.name} {DROPPING}"] == 99.0


def test_beside_each_goodput_stands_who_pays_for_it():
    measured = goodput.measurements()
    values = {each.key: 10.0 for each in measured}
    for look in goodput.LOOKS.values():
        for metric in LOOKED_AT:
            values[f"{look.key}, {metric}"] = 0.75
    rows = [row for row in goodput.rows(values) if row.ours == 0.75]
    assert len(rows) == 5 * len(goodput.LOOKS) == 5 * 30
    assert {row.strategy for row in rows} == {"unified"}
