"""Every paper's benchmark, every strategy, and what of them is the best."""

import pytest

from macroserve.core.strategy import STRATEGIES
from macroserve.sim.papers import unified
from macroserve.sim.papers.measurements import Goodput


def test_each_benchmark_has_every_strategy_for_ten_minutes():
    assert len(unified.BENCHMARKS) == 18 + 9 + 9 + 3
    measured = unified.goodput_measurements()
    assert len({each.key for each in measured}) == len(measured)
    assert all(each.duration_s == 600.0 for each in measured)
    for benchmark in unified.BENCHMARKS:
        own = [each for each in measured if each.key.startswith(benchmark.key(""))]
        named = {each.key.removeprefix(benchmark.key("")).split(" ")[0] for each in own}
        assert set(STRATEGIES) <= {name.rstrip(",") for name in named}
        if benchmark.limit_s is None:
            sarathi = next(each for each in own if each.key == benchmark.key("sarathi"))
            assert isinstance(sarathi, Goodput)
            chunks = [each.setup.chunk_tokens for each in sarathi.experiments]
            assert chunks == list(unified.CHUNKS)


def test_gains_are_over_the_papers_own_and_over_the_best():
    values = {each.key: 10.0 for each in unified.goodput_measurements()}
    first, second, third = (each for each in unified.BENCHMARKS if each.paper == "ascendra")
    for benchmark in (first, second, third):
        values[benchmark.key("unified")] = 20.0
    values[first.key("vllm")] = 16.0
    values[first.key("ascendra")] = 5.0
    values[first.key(unified.DROPPING)] = 99.0
    shown = {row.case + " " + row.strategy: row for row in unified.goodput_rows(values)}
    gains = {key: row.ours for key, row in shown.items() if row.is_summary}
    assert gains["ascendra, mean unified over its own strategy"] == pytest.approx((4 + 2 + 2) / 3)
    assert gains["ascendra, worst case unified over its own strategy"] == 2.0
    assert gains["ascendra, worst case unified over the best other"] == pytest.approx(1.25)
    assert gains["ecoserve, mean unified over the best other"] == 1.0
    assert shown[f"ascendra, {first.name} {unified.DROPPING}"].ours == 99.0
