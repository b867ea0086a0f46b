"""The ablations report the loss without each part of a strategy, and the gain of another part."""

import pytest

from macroserve_lab.papers.unified import figures
from macroserve_lab.papers.unified.benchmarks import BENCHMARKS
from macroserve_lab.papers.unified.figures import Ablation

ABLATIONS = {"unified": figures.PARTS, "macro": figures.MACRO_PARTS}


@pytest.mark.parametrize("name", ABLATIONS)
def test_ablation_variants_are_different_strategies(name: str) -> None:
    for case in ABLATIONS[name].cases:
        scenarios = [each.scenario for each in ABLATIONS[name].variants_of(case).values()]
        assert scenarios[0].strategy.name == name
        kinds = {(each.strategy, each.high_priority_ratio) for each in scenarios}
        assert len(kinds) == len(scenarios)


@pytest.mark.parametrize(
    ("name", "changed", "same"),
    [
        (
            "unified",
            "without triage and response ratios (by deadline alone)",
            "with exact allocation",
        ),
        ("macro", "macro without lending", "macro without the HP pool"),
    ],
)
def test_ablation_changes_are_averaged_over_cases(name: str, changed: str, same: str) -> None:
    found: Ablation = ABLATIONS[name]
    values = {each.key: 10.0 for each in found.measurements}
    for index, case in enumerate(found.cases):
        values[case.key(changed)] = 8.0 if index else 5.0
    rows = {(row.case, row.strategy): row.ours for row in found.figure.rows(values)}
    num = len(found.cases)
    assert rows["mean of all cases", changed] == pytest.approx((-50 - 20 * (num - 1)) / num)
    assert rows["mean of all cases", same] == 0.0


def test_unified_ablation_has_cases_of_each_paper():
    assert {benchmark.paper for benchmark in figures.CASES} == {
        benchmark.paper for benchmark in BENCHMARKS
    }
