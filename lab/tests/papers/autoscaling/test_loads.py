"""Loads whose rate changes, and the measurement of a fleet that follows one."""

from dataclasses import replace

import pytest
from support.experiment import EXPERIMENT

from macroserve.core.scaling.autoscale import Limits
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.autoscaling.goals import Goals
from macroserve.sim.autoscaling.run import AutoscaledScenario
from macroserve.sim.autoscaling.start_up import StartUp
from macroserve.workload.arrivals import Arrival
from macroserve.workload.trace import Trace
from macroserve_lab.papers.autoscaling import figures
from macroserve_lab.papers.autoscaling.loads import Bursts, Recorded, Stages
from macroserve_lab.papers.autoscaling.scaled import METRICS, Scaled, rates


def test_stages_have_their_rates_one_after_the_other() -> None:
    times_s = [each.at_s for each in Stages(((2, 2), (4, 1))).arrivals(0)]
    assert times_s == [0.0, 0.5, 1.0, 1.5, 2.0, 2.25, 2.5, 2.75]


def test_published_load_is_that_of_llm_d() -> None:
    assert figures.LOAD.duration_s == 2430.0
    assert len(figures.LOAD.arrivals(0)) == 12_480
    limits = figures.BENCHMARK.fleet.limits
    assert (limits.least, limits.most) == (3, 8)
    assert figures.BENCHMARK.fleet.start_up == StartUp(100.0)


def test_bursts_are_busier_than_calm_times_and_end_in_time() -> None:
    load = Bursts(3000.0, calm=(1.0, 200.0), busy=(9.0, 100.0), variation=1.0)
    times_s = [each.at_s for each in load.arrivals(1)]
    assert times_s == sorted(times_s) and times_s[-1] < 3000.0
    by_minute = [rate for _, rate in rates(times_s, 60.0)]
    assert min(by_minute) < 2.0 and max(by_minute) > 7.0
    assert load.arrivals(1) == load.arrivals(1) != load.arrivals(2)


def test_recorded_load_begins_at_once_and_runs_faster() -> None:
    rows = tuple(Arrival(at_s, 10, 5) for at_s in (30.0, 33.0, 60.0))
    assert [each.at_s for each in Recorded(Trace(rows), 3.0).arrivals(0)] == [0.0, 1.0, 10.0]


def test_rates_count_each_stretch() -> None:
    assert rates([0.0, 1.0, 25.0], 10.0) == [(0.0, 0.2), (10.0, 0.0), (20.0, 0.1)]


@pytest.fixture(scope="module")
def measured():
    scenario = replace(EXPERIMENT.scenario, strategy=STRATEGIES["unified"])
    fleet = AutoscaledScenario(scenario, Limits(1, 2, 0.0, 60.0), StartUp(5.0), Goals(0.9))
    found = Scaled("small", fleet, Stages(((0.2, 90),)))
    return found, found.measure(0)


def test_measurement_has_all_metrics_and_lines(measured) -> None:
    found, values = measured
    attained, mean_instances, *_ = [values[f"small, {metric}"] for metric in METRICS]
    assert attained == 1.0 == mean_instances
    assert found.line("wanted", values) == [(0.0, 1), (30.0, 1), (60.0, 1)]
    assert {*found.panel("title", values).lines} == {"wanted", "serving"}


def test_rows_stand_beside_the_published_values() -> None:
    values = {
        f"{each.key}, {metric}": 1.0
        for each in (*figures.BY_START.values(), *figures.VARIANTS.values())
        for metric in METRICS
    }
    rows = figures.FIGURES["llm-d"].rows(values)
    assert {row.metric: row.paper for row in rows if row.paper} == figures.PUBLISHED
    assert len(figures.FIGURES["start-up"].rows(values)) == 7 * len(METRICS)


def test_benchmark_has_failing_starts_of_the_usual_and_of_a_long_time() -> None:
    failing = {
        (each.fleet.start_up.mean_s, each.fleet.start_up.failing_share)
        for each in figures.VARIANTS.values()
        if each.fleet.start_up.failing_share
    }
    assert failing == {(100.0, 0.1), (100.0, 0.3), (200.0, 0.1), (200.0, 0.3)}


def test_measurement_counts_failed_starts() -> None:
    scenario = replace(EXPERIMENT.scenario, strategy=STRATEGIES["unified"])
    start_up = StartUp(5.0, failing_share=0.5)
    fleet = AutoscaledScenario(scenario, Limits(2, 3, 0.0, 60.0), start_up, Goals(0.9))
    found = Scaled("small", fleet, Stages(((1, 30), (40, 60), (1, 90))))
    assert found.measure(0)["small, failed starts"] >= 1


def test_figure_of_a_trace_serves_that_trace() -> None:
    trace = Trace((Arrival(0.0, 10, 5), Arrival(9.0, 10, 5)))
    (measurement,) = figures.azure(trace).measurements
    assert measurement.load == Recorded(trace, figures.SPEED)
