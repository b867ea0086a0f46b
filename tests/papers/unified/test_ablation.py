"""The ablation reports what is lost without each part of unified, and won with one more."""

import pytest

from macroserve.papers.unified import ablation
from macroserve.papers.unified.benchmarks import BENCHMARKS


def test_unified_ablation_variants_are_different_strategies():
    for benchmark in ablation.CASES:
        scenarios = [each.scenario for each in ablation.variants_of(benchmark).values()]
        assert len({(each.strategy, each.high_priority_ratio) for each in scenarios}) == len(
            scenarios
        )


def test_unified_ablation_changes_are_averaged_over_cases():
    values = {each.key: 10.0 for each in ablation.measurements()}
    part = "triage and response ratios (by deadline alone)"
    for index, benchmark in enumerate(ablation.CASES):
        values[benchmark.key(f"without {part}")] = 8.0 if index else 5.0
    rows = {(row.case, row.strategy): row.ours for row in ablation.rows(values)}
    num = len(ablation.CASES)
    mean = (-50 - 20 * (num - 1)) / num
    assert rows["mean of all cases", f"without {part}"] == pytest.approx(mean)
    assert rows["mean of all cases", "with exact allocation"] == 0.0


def test_unified_ablation_has_cases_of_each_paper():
    assert {benchmark.paper for benchmark in ablation.CASES} == {
        benchmark.paper for benchmark in BENCHMARKS
    }
