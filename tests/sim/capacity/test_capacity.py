from dataclasses import replace

import msgspec
import pytest

from macroserve.core.request import Slo
from macroserve.core.scaling.autoscale import CapacityEstimate
from macroserve.core.slo_class import SloClass
from macroserve.sim.capacity import capacity, scale_down_check
from macroserve.sim.capacity.capacity import fewest, need
from macroserve.sim.capacity.scale_down_check import AttainmentEstimate, attainment
from macroserve.sim.capacity.traffic import expected, last_minute

pytestmark = pytest.mark.simulation

GOAL = 0.9


def needed(instance_model, load, present, least=1, most=16, goal=GOAL, num_waiting=0, **fields):
    return need(
        instance_model,
        load,
        goal=goal,
        present=present,
        least=least,
        most=most,
        num_waiting=num_waiting,
        **fields,
    )


@pytest.mark.parametrize(
    ("rate", "present", "enough", "survivors"),
    [
        (2.0, 1, 1, 1),
        (2.0, 2, 2, 1),
        (2.0, 8, 8, 4),  # half at most
        (8.0, 1, 2, 2),
        (30.0, 1, 2, 2),  # twice at most
        (8.0, 4, 4, 2),
    ],
)
def test_capacity_of_a_steady_load_is_as_expected(
    rate, present, enough, survivors, make_design, make_load
):
    found = needed(make_design(), make_load([rate] * 60), present)
    assert (found.enough, found.survivors) == (enough, survivors)
    assert found.requests_per_s == pytest.approx(rate)
    assert found.helps


def test_capacity_attains_the_goal_and_one_instance_fewer_does_not(make_design, make_load):
    instance_model, load = make_design(), make_load([16.0] * 60)
    found = needed(instance_model, load, 2)
    traffic = expected(load, 0)
    assert 2 < found.enough <= 4
    assert attainment(instance_model, traffic, found.enough, GOAL).attainment >= GOAL
    assert attainment(instance_model, traffic, found.enough - 1, GOAL).attainment < GOAL


def test_survivors_attain_in_the_last_minute_and_one_fewer_do_not(make_design, make_load):
    instance_model, load = make_design(), make_load([2.0] * 54 + [10.0] * 6)
    found = needed(instance_model, load, 4, start_s=0.0)
    traffic = last_minute(load, 0)
    assert found.enough == 4
    assert 1 < found.survivors < 4
    assert attainment(instance_model, traffic, found.survivors, GOAL).attainment >= GOAL
    assert attainment(instance_model, traffic, found.survivors - 1, GOAL).attainment < GOAL


def test_capacity_a_minute_after_a_peak_has_fallen(make_design, make_load):
    """The window for scaling down, of ``decide``, remembers the peak."""
    assert needed(make_design(), make_load([16.0] * 30 + [1.0] * 5), 4).survivors > 2
    assert needed(make_design(), make_load([16.0] * 30 + [1.0] * 6), 4).survivors == 2


def test_capacity_of_rising_demand_grows_in_advance(make_design, make_load):
    rising = make_load([1 + 0.25 * bucket for bucket in range(18)])
    present = rising.buckets[0].requests / 10
    assert needed(make_design(), make_load([present] * 60), 1).enough == 1
    assert needed(make_design(), rising, 1).enough == 2


def test_capacity_of_a_risen_load_grows_with_the_start_up(make_design, make_load):
    """The load has risen in two steps, and others may come during a long start."""
    stairs = make_load([2.0] * 20 + [5.0] * 20 + [8.0] * 20)
    short, long = (needed(make_design(), stairs, 4, start_s=start_s) for start_s in (10.0, 300.0))
    assert (short.survivors, long.survivors) == (2, 3)
    steady = needed(make_design(), make_load([8.0] * 60), 4, start_s=300.0)
    assert steady.survivors == 2
    assert needed(make_design(), stairs, 1, start_s=300.0).requests_per_s == pytest.approx(14.0)


def test_capacity_with_a_queue_counts_it_at_a_small_rate(make_design, make_load):
    """Requests that arrived in a burst still wait, which the rate of arrivals alone would not
    show."""
    instance_model, load = make_design(strategy="vllm"), make_load([1.0] * 60)
    assert needed(instance_model, load, 2).survivors == 1
    behind = needed(instance_model, load, 2, num_waiting=1000)
    assert behind.enough > 2
    assert behind.survivors == behind.enough


@pytest.mark.parametrize("rate", [1.0, 30.0])
@pytest.mark.parametrize(("least", "most"), [(4, 4), (3, 5), (2, 16)])
def test_capacity_stays_within_its_bounds(rate, least, most, make_design, make_load):
    found = needed(make_design(), make_load([rate] * 60), 4, least, most)
    assert least <= found.survivors <= found.enough <= most


def test_capacity_of_a_queue_without_lengths_keeps_all_instances(make_design, make_load):
    silent = make_load([0.0] * 60)
    assert needed(make_design(), silent, 8, num_waiting=1) == CapacityEstimate(0.0, 8, 8)


def test_capacity_without_requests_is_the_fewest(make_design, make_load):
    found = needed(make_design(), make_load([0.0] * 60), 8, least=2)
    assert (found.requests_per_s, found.enough, found.survivors) == (0.0, 8, 4)


@pytest.mark.parametrize("slo", [Slo(1e-3, 0.1), Slo(2.0, 1e-3)])
def test_capacity_for_impossible_targets_adds_no_instance(slo, make_design, make_load):
    found = needed(make_design(slo=slo), make_load([2.0] * 60), 2)
    assert (found.enough, found.survivors, found.helps) == (2, 2, False)


def test_capacity_with_some_impossible_requests_is_that_of_the_others(make_design, make_load):
    """A fifth of the prompts are too long for their target on any instance."""
    lengths = ((100, 100),) * 4 + ((1900, 100),)
    instance_model = make_design(slo=Slo(ttft_s=0.2, tpot_s=0.1))
    calm = needed(instance_model, make_load([1.0] * 60, lengths), 2)
    assert (calm.enough, calm.helps) == (2, False)
    busy = needed(instance_model, make_load([20.0] * 60, lengths), 2)
    assert busy.helps and busy.enough > 2


def test_capacity_of_a_truncated_simulation_is_uncertain(make_design, make_load, monkeypatch):
    load = make_load([4.0] * 60)
    assert needed(make_design(), load, 2).certain
    monkeypatch.setattr(scale_down_check, "MAX_ITERATIONS", 300)
    assert not needed(make_design(), load, 2).certain


@pytest.mark.parametrize("alone", [1.0, 0.5])
def test_capacity_of_a_truncated_simulation_adds_no_instance(
    alone, make_design, make_load, monkeypatch
):
    """Requests attain the share `alone` with an instance each. If it is below the goal, the goal
    may be out of reach."""

    def estimate(instance_model, traffic, num_instances, goal=0.0):
        if not goal:
            return AttainmentEstimate(alone, True)
        # The goal itself is surely missed; whether more could be reached at all is not known.
        return AttainmentEstimate(0.3, goal == GOAL and alone < GOAL)

    monkeypatch.setattr(capacity, "attainment", estimate)
    found = needed(make_design(), make_load([4.0] * 60), 2)
    assert (found.enough, found.certain, found.helps) == (2, False, True)


@pytest.mark.parametrize("enough", [3, 4, 7, 11, 12])
def test_fewest_finds_the_number_in_few_tries(enough):
    tried = []

    def suffices(num):
        tried.append(num)
        return num >= enough

    assert fewest(suffices, 3, 12) == enough
    assert len(tried) <= 4
    assert 12 not in tried


def test_class_with_strict_targets_needs_more_instances(make_design, make_load):
    """The default class has loose targets, and alone would keep fewer."""
    design, lengths = make_design(slo=Slo(20.0, 1.0)), ((400, 60),) * 4
    load = make_load([12.0] * 60, lengths)
    strict = SloClass(name="strict", slo=Slo(0.5, 0.1), attainment=0.95)
    mixed = msgspec.structs.replace(load, classes=("strict", *["default"] * 3))
    with_strict = replace(design, slo_classes=(strict,))
    plain = needed(design, load, 4)
    assert plain.survivors < needed(with_strict, mixed, 4).survivors
    assert needed(with_strict, load, 4) == plain, "no request is of the class"
    assert needed(design, mixed, 4) == plain, "the class is not known"
