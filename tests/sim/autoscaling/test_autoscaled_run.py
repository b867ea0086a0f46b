"""A fleet follows its load: instances start late, fail to start, and drain before they leave."""

from dataclasses import replace

import pytest
from support.experiment import EXPERIMENT

from macroserve.core.scaling.autoscale import Limits
from macroserve.core.scaling.mitosis import Bounds
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.autoscaling.goals import Goals
from macroserve.sim.autoscaling.run import AutoscaledScenario
from macroserve.sim.autoscaling.start_up import StartUp
from macroserve.sim.capacity import scale_down_check
from macroserve.workload.arrivals import Arrival

pytestmark = pytest.mark.simulation

START_S = 20.0
BEFORE_S, BUSY_S, AFTER_S = 30.0, 90.0, 130.0
CALM, BUSY = 0.4, 4.0
"""Requests per second; an instance serves about 2 of them."""


def arrivals(calm=CALM, busy=BUSY):
    found, start_s = [], 0.0
    for rate, duration_s in ((calm, BEFORE_S), (busy, BUSY_S), (calm, AFTER_S)):
        found += [Arrival(start_s + i / rate, 6000, 10) for i in range(int(rate * duration_s))]
        start_s += duration_s
    return found


def scenario_of(**fields):
    cluster = replace(EXPERIMENT.scenario.cluster, num_instances=1)
    given = {"bounds": None, **fields}
    return replace(EXPERIMENT.scenario, cluster=cluster, strategy=STRATEGIES["unified"], **given)


def autoscaled(start_up=StartUp(START_S), most=6, **fields):  # noqa: B008
    limits = Limits(1, most, 0.0, 20.0)
    return AutoscaledScenario(scenario_of(**fields), limits, start_up, Goals(0.9))


@pytest.fixture(scope="module", autouse=True)
def short_estimates():
    """Let each simulation of the load serve fewer requests, which takes a quarter of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scale_down_check, "MIN_REQUESTS", 25)
        yield


@pytest.fixture(scope="module")
def followed():
    return autoscaled().serve(arrivals())


def test_target_rises_with_the_load_and_falls_after_it(followed) -> None:
    timeline = followed.timeline
    assert timeline.num_ups and timeline.num_downs
    wanted = {each.at_s: each.wanted for each in timeline.moments}
    assert wanted[0.0] == 1 < max(wanted.values()) <= 6
    assert timeline.moments[-1].wanted < max(wanted.values())
    assert all(each.change.at_s > BEFORE_S for each in timeline.changes)
    assert all(each.reason.endswith(".") for each in timeline.changes)


def test_added_instances_serve_after_their_start(followed) -> None:
    first = followed.timeline.changes[0].change
    moments = followed.timeline.moments
    serving_s = next(each.at_s for each in moments if each.ready > first.before)
    assert START_S <= serving_s - first.at_s <= START_S + 5.0


def test_fleet_serves_every_request_but_those_that_wait_too_long_before_it_has_grown(
    followed,
) -> None:
    result, timeline = followed
    assert result.requests == len(arrivals()) == len(result.results)
    most = max(each.ready for each in timeline.moments)
    grown_s = next(each.at_s for each in timeline.moments if each.ready == most)
    refused_s = [each.arrival_s for each in result.results if each.refused]
    assert refused_s and max(refused_s) < grown_s
    assert 1 < timeline.mean_ready <= timeline.mean_existing < 6
    assert timeline.end_s == arrivals()[-1].at_s


@pytest.fixture(scope="module")
def failing():
    return autoscaled(StartUp(START_S, variation=0.5, failing_share=0.6)).serve(arrivals(), seed=2)


def test_equal_seeds_give_equal_runs(failing) -> None:
    again = autoscaled(StartUp(START_S, variation=0.5, failing_share=0.6))
    assert again.serve(arrivals(), seed=2) == failing


def test_start_that_fails_is_followed_by_another(failing, followed) -> None:
    assert failing.timeline.num_failed > 0 == followed.timeline.num_failed
    assert max(each.ready for each in failing.timeline.moments) > 1


def test_longer_starts_attain_less(followed) -> None:
    slow = autoscaled(StartUp(100.0)).serve(arrivals())
    assert slow.result.attainment < followed.result.attainment - 0.1


def test_cells_divide_and_merge_with_the_fleet() -> None:
    apart = autoscaled(bounds=Bounds(1, 2)).serve(arrivals())
    assert apart.result.requests == len(apart.result.results)
    assert max(each.ready for each in apart.timeline.moments) > 2
    assert apart.timeline.num_downs > 0


@pytest.mark.parametrize(("least", "most", "num"), [(2, 3, 2)])
def test_fleet_begins_within_its_limits_and_stays_there(least, most, num) -> None:
    limited = replace(autoscaled(), limits=Limits(least, most, 0.0, 20.0))
    moments = limited.serve(arrivals()).timeline.moments
    assert moments[0].ready == num
    assert {each.wanted for each in moments} <= set(range(least, most + 1))
