"""Measurements return the documented values, by unique keys."""

from dataclasses import replace

import pytest
from support.experiment import EXPERIMENT

from macroserve.core.request import Slo
from macroserve.sim.results import AT_END
from macroserve_lab.papers.measurements import (
    LOOKED_AT,
    BestOf,
    Ceiling,
    CloserLook,
    Curve,
    FewestInstances,
    Goodput,
    Metric,
    Percentiles,
    RateAtLatency,
)

PATIENT = replace(EXPERIMENT, scenario=replace(EXPERIMENT.scenario, slo=Slo(1e6, 1e6)))


def with_instances(num, experiment=EXPERIMENT):
    cluster = replace(experiment.scenario.cluster, num_instances=num)
    return replace(experiment, scenario=replace(experiment.scenario, cluster=cluster))


def test_rate_at_latency_is_the_last_rate_within_it():
    rate = RateAtLatency("r", PATIENT, 0.02, 20.0, 1.0, 60.0).measure(seed=0)["r"]
    assert 1.0 < rate < 60.0
    assert Metric.NORMALISED_LATENCY.of(PATIENT.serve(rate, 20.0, stop=AT_END)) <= 0.02
    assert Metric.NORMALISED_LATENCY.of(PATIENT.serve(2 * rate, 20.0, stop=AT_END)) > 0.02


@pytest.mark.parametrize("metric", Metric)
def test_curve_has_a_point_for_each_rate(metric):
    curve = Curve("c", PATIENT, (2.0, 4.0), 5.0, metric)
    values = curve.measure(seed=0)
    assert [rate for rate, _ in curve.line(values)] == [2.0, 4.0]
    for rate, value in curve.line(values):
        outcome = PATIENT.serve(rate, 5.0, stop=AT_END)
        assert value == metric.of(outcome)


def test_percentiles_are_over_all_counted_requests():
    measured = Percentiles("p", PATIENT, 4.0, 10.0)
    values = measured.measure(seed=0)
    outcome = PATIENT.serve(4.0, 10.0, stop=AT_END)
    results = outcome.results
    assert values["p, attainment"] == outcome.attainment
    for name, times in (("TTFT", "wait_s"), ("TPOT", "tpot_s"), ("P99 TBT", "tbt_s")):
        line = measured.line(name, values)
        assert line == sorted(line)
        (median,) = [at_s for at_s, share in line if share == 0.5]
        assert values[f"p, {name} p50"] == median
        taken = [getattr(result, times) for result in results]
        assert sum(each <= median for each in taken) >= len(taken) / 2
        assert sum(each < median for each in taken) < len(taken) / 2


def test_ceiling_is_the_rate_served_under_any_overload():
    def of(num):
        return Ceiling("c", with_instances(num, PATIENT), 40.0, 12.0 * num)

    one, two = (of(num).measure(seed=0)["c"] for num in (1, 2))
    assert two == pytest.approx(2 * one, rel=0.15)
    patient = of(2).experiment
    below, beyond = (
        Metric.NORMALISED_LATENCY.of(patient.serve(times * two, 40.0, stop=AT_END))
        for times in (0.7, 1.5)
    )
    assert beyond > 2 * below


@pytest.mark.parametrize("num_instances", [1, 2])
def test_fewest_instances_hold_the_goodput_of_the_other(num_instances):
    other = Goodput("other", with_instances(num_instances), 0.9, 10.0, 8.0 * num_instances, 200.0)
    values = FewestInstances("fewest", other, tuple(map(with_instances, (1, 2, 3)))).measure(seed=0)
    assert values["fewest"] == num_instances
    assert values["other"] == other.measure(seed=0)["other"]


def test_fewest_instances_above_all_tried_is_one_more():
    two = Goodput("two", EXPERIMENT, 0.9, 10.0, 8.0, 200.0)
    none = replace(EXPERIMENT, scenario=replace(EXPERIMENT.scenario, slo=Slo(1e-6, 1e-6)))
    assert FewestInstances("fewest", two, (none, none)).measure(0)["fewest"] == 3


def test_best_of_reports_the_best_and_zero_for_the_others():
    def search(key, num_instances):
        return Goodput(key, with_instances(num_instances), 0.9, 10.0, 1.0, 200.0)

    two, one, three = search("two", 2), search("one", 1), search("three", 3)
    best = BestOf("best", (two, three, one))
    values = best.measure(seed=0)
    assert values["two"] == two.measure(seed=0)["two"]
    assert values["one"] == 0.0
    assert values["three"] == values["best"] == pytest.approx(three.measure(0)["three"], rel=0.05)
    assert best.winner(values) is three


def test_closer_look_is_taken_at_the_goodput():
    look = CloserLook(Goodput("c", EXPERIMENT, 0.9, 10.0, 1.0, 80.0))
    rate = EXPERIMENT.goodput(0.9, 10.0, 1.0, 80.0)
    outcome = EXPERIMENT.serve(rate, 10.0, stop=AT_END)
    values = look.measure(seed=0)
    assert values["c"] == rate
    found = [values[f"c, {of}"] for of in LOOKED_AT]
    assert found == [*outcome.by_size, outcome.longest_wait_s]
    assert sum(outcome.by_size) / 4 == pytest.approx(outcome.attainment, abs=0.02)
