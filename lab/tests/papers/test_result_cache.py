"""Cached measurements: kept, resumed, and only used for the same measurement."""

from dataclasses import replace

import pytest
from support.experiment import EXPERIMENT

from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES
from macroserve_lab.papers.measurements import Attainment, Curve, Goodput, Metric
from macroserve_lab.papers.result_cache import ResultCache, distinct, measure_all


def changed(**fields):
    return replace(EXPERIMENT, scenario=replace(EXPERIMENT.scenario, **fields))


QUICK = Attainment("quick", EXPERIMENT, 2.0, 2.0)
OTHER = Attainment("other", EXPERIMENT, 3.0, 2.0)


def run(path, measurements, *seeds):
    """Return the values, and the number of new measurements."""
    cache, seeds = ResultCache(path), seeds or (0,)
    before = len(path.read_text().splitlines()) if path.exists() else 0
    progress = []
    values = measure_all(measurements, cache, seeds, 2, progress.append)
    assert sum(progress) == len(seeds) * len(measurements)
    return values, len(path.read_text().splitlines()) - before


def test_measurement_that_two_figures_have_in_common_is_carried_out_once():
    assert distinct([QUICK, OTHER, replace(QUICK), OTHER]) == [QUICK, OTHER]


def test_result_cache_with_half_a_line_measures_it_again(tmp_path):
    path = tmp_path / "measured.jsonl"
    run(path, [QUICK, OTHER])
    whole = path.read_text()
    path.write_text(whole[:-20])
    values, new = run(path, [QUICK, OTHER])
    assert new == 1 and len(values) == 2
    assert sorted(path.read_text().splitlines()) == sorted(whole.splitlines())


def test_result_cache_with_a_measurement_returns_it(tmp_path):
    path = tmp_path / "out" / "measured.jsonl"
    first, new = run(path, [QUICK])
    assert new == 1
    again, new = run(path, [QUICK, OTHER])
    assert new == 1
    assert again["quick"] == first["quick"]
    assert run(path, [QUICK, OTHER]) == (again, 0)


@pytest.mark.parametrize(
    "changed",
    [
        replace(QUICK, rate=2.5),
        replace(QUICK, experiment=changed(strategy=STRATEGIES["sarathi"])),
        replace(QUICK, experiment=changed(slo=Slo(2.0, 0.1))),
        Goodput("quick", EXPERIMENT, 0.9, 2.0, 1.0, 2.0),
    ],
    ids=["rate", "strategy", "slo", "kind"],
)
def test_result_cache_with_a_changed_measurement_measures_again(tmp_path, changed):
    path = tmp_path / "measured.jsonl"
    run(path, [QUICK])
    assert run(path, [changed])[1] == 1


def test_result_cache_with_another_seed_measures_again(tmp_path):
    path = tmp_path / "measured.jsonl"
    assert [run(path, [QUICK], seed)[1] for seed in (0, 1, 0)] == [1, 1, 0]


def test_result_cache_of_several_seeds_returns_the_mean(tmp_path):
    path = tmp_path / "measured.jsonl"
    latency = Curve("latency", EXPERIMENT, (2.0,), 2.0, Metric.NORMALISED_LATENCY)
    alone = [run(path, [latency], seed)[0] for seed in (1, 2)]
    together, new = run(path, [latency], 1, 2)
    assert new == 0
    assert alone[0] != alone[1]
    for key, value in together.items():
        assert value == pytest.approx((alone[0][key] + alone[1][key]) / 2)


class Described:
    key = "described"

    def __init__(self, text):
        self._text = text

    def __repr__(self):
        return self._text

    def measure(self, seed):
        raise AssertionError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("A(frozenset({'b', 'a'}), 1)", {"described": 2.0}),
        ("A(frozenset({'b', 'c'}), 1)", None),
        ("A(frozenset({'b', 'a'}), 2)", None),
    ],
)
def test_result_cache_ignores_the_order_of_sets_alone(tmp_path, text, values):
    """The order in which a set lists its members differs from process to process."""
    cache = ResultCache(tmp_path / "measured.jsonl")
    cache.note(Described("A(frozenset({'a', 'b'}), 1)"), 0, {"described": 2.0})
    assert cache.known(Described(text), 0) == values
