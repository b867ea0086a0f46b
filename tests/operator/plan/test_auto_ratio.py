"""The automatic share of HP instances is simulated when it matters, and kept."""

import pytest
from support.reconcile_results import cell, manifest, observation
from support.scaled_deployment import AUTOSCALED, World, load_of, told

from macroserve.api.messages import Report
from macroserve.core.scaling.autoscale import CapacityEstimate
from macroserve.core.scaling.signals import STALE_S
from macroserve.operator.plan.autoscaler import needs_load

MISSED = Report((told(cell("cell-0", 0, 1, 2, finished=100, attained=50)),))
"""A report in which half of the last minute's requests were late."""


@pytest.fixture(params=[{}, {"autoscaling": {"minInstances": 3, "maxInstances": 8}}], ids=str)
def open_world(request):
    """Return a world that autoscales only Ascendra's ratio, or the ratio and the number of
    instances."""
    found = World(manifest(scheduling={"strategy": "ascendra"}, **request.param))
    found.report = MISSED
    found.oracle.answer = lambda held: CapacityEstimate(20.0, held, held)
    found.oracle.ratio = 0.0
    return found


THIRD = 0.333
"""A third with the digits that a status shows."""


async def test_simulated_third_is_as_the_status_shows_it_and_the_simulation_is_kept(open_world):
    open_world.oracle.ratio = 1 / 3
    await open_world.reconcile()
    open_world.oracle.forgotten = 0
    assert (await open_world.reconcile()).high_priority_ratio == THIRD
    assert not open_world.oracle.forgotten


async def test_automatic_ratio_is_as_simulated_and_stays(open_world):
    world = open_world
    world.report = Report((told(cell("cell-0", 0, 1, 2)),))
    assert (await world.reconcile()).high_priority_ratio == THIRD
    world.oracle.forgotten = 0
    world.report = MISSED
    assert (await world.reconcile()).high_priority_ratio == 0.0
    assert world.oracle.forgotten, "what was simulated with HP instances says nothing of none"
    world.report = Report((told(cell("cell-0", 0, 1, 2)),))
    world.oracle.ratio = 0.5
    world.start()
    assert (await world.reconcile()).high_priority_ratio == 0.0, "targets are met, so it may stay"


@pytest.mark.parametrize(
    ("spec", "ratio"),
    [
        ({"strategy": "ascendra", "ratio": 0.5}, 0.5),
        ({"strategy": "vllm", "ratio": "Auto"}, 0.0),
    ],
    ids=str,
)
async def test_ratio_that_is_given_or_useless_is_not_simulated(spec, ratio):
    world = World(
        manifest(
            scheduling={"strategy": spec["strategy"]},
            priority={"highPriorityRatio": spec["ratio"]},
        )
    )
    world.report = MISSED
    world.oracle.ratio = 0.9
    assert (await world.reconcile()).high_priority_ratio == ratio
    assert not world.oracle.asked
    assert not needs_load(world.manifest, MISSED)


async def test_ratio_is_kept_while_the_load_is_not_known(open_world):
    for world_load in (None, load_of(num_buckets=0), load_of(age_s=STALE_S + 1)):
        open_world.load = world_load
        assert (await open_world.reconcile()).high_priority_ratio == THIRD


def test_load_is_requested_only_when_it_is_needed():
    met = Report((told(cell("cell-0", 0, 1, 2, finished=100, attained=90)),))
    assert needs_load(AUTOSCALED, met)
    assert not needs_load(manifest(), met)
    assert needs_load(manifest(), MISSED)


async def test_ratio_is_simulated_only_while_targets_are_missed(open_world):
    """A simulation takes a second and is skipped when its result could not change anything."""
    await open_world.reconcile()
    missed = observation(manifest=open_world.manifest, report=MISSED)
    met = observation(manifest=open_world.manifest, report=Report((told(cell("cell-0", 0, 1, 2)),)))
    simulate, (_, load) = open_world.oracle.simulate.func, open_world.oracle.simulate.args
    tried = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "macroserve.operator.plan.autoscaler.best_ratio", lambda *of: tried.append(of)
        )
        simulate(met, load)
        assert not tried
        simulate(missed, load)
    ((design, traffic, num, goal),) = tried
    assert design.high_priority_ratio == THIRD
    assert (traffic.rates, num, goal) == ((pytest.approx(10.0),), 3, 0.9)
