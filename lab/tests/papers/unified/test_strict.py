"""The same benchmarks under stricter terms."""

from lab_support.made_up import made_up

from macroserve_lab.papers.measurements import BestOf
from macroserve_lab.papers.unified import figures
from macroserve_lab.papers.unified.benchmarks import BENCHMARKS
from macroserve_lab.slo_rules import as_aptserve


def test_strict_goodput_needs_nearly_all_requests_within_the_targets():
    for each in figures.FIGURES["p99"].measurements:
        searches = each.searches if isinstance(each, BestOf) else (each,)
        assert {search.level for search in searches} == {0.99}
    assert {each.paper for each in figures.NEARLY_ALL} == {"ecoserve", "aptserve", "ascendra"}


def test_strict_rule_needs_nearly_every_token_in_time_for_all_strategies():
    for each in figures.FIGURES["tbt"].measurements:
        searches = each.searches if isinstance(each, BestOf) else (each,)
        assert {search.experiment.scenario.slo_rule for search in searches} == {as_aptserve}


def test_strict_keys_differ_from_all_other_figures():
    known = {benchmark.key("") for benchmark in BENCHMARKS}
    names = [each.key("") for each in (*figures.NEARLY_ALL, *figures.EVERY_TOKEN)]
    assert len(names) == len(set(names))
    assert known.isdisjoint(names)


def test_strict_rows_have_the_gain_and_the_rates():
    values = made_up(figures.FIGURES["p99"].measurements, 2.0)
    for benchmark in figures.NEARLY_ALL:
        values[benchmark.key("unified")] = 3.0
    rows = figures.FIGURES["p99"].rows(values)
    gains = [row.ours for row in rows if row.is_summary and "ecoserve" in row.case]
    assert all(1.0 <= gain <= 1.5 for gain in gains)
    rates = [row for row in rows if not row.is_summary]
    # unified, refusing, the paper's own, vLLM, the best other
    assert len(rates) == 5 * len(figures.NEARLY_ALL)
