import dataclasses

import pytest
from msgspec.structs import replace

from macroserve.core.request import Slo
from macroserve.core.slo_class import SloClass
from macroserve.sim.capacity import scale_down_check
from macroserve.sim.capacity.scale_down_check import MAX_SHARE, attainment
from macroserve.sim.capacity.traffic import Traffic, expected, last_minute
from macroserve.sim.simulation import single_cell

pytestmark = pytest.mark.simulation

HOPELESS = Slo(ttft_s=1e-3, tpot_s=1e-3)

LONG_S = 600.0


def steady(load, rate):
    return expected(load([rate] * 60), 0)


def test_attainment_rises_with_instances_and_falls_with_load(make_design, make_load):
    instance_model = make_design()
    by_number = [
        attainment(instance_model, steady(make_load, 14.0), n).attainment for n in (1, 2, 3, 6)
    ]
    assert by_number == sorted(by_number) and by_number[0] < 0.7 < 0.95 < by_number[-1]
    by_rate = [
        attainment(instance_model, steady(make_load, r), 2).attainment for r in (4.0, 14.0, 28.0)
    ]
    assert (
        by_rate == sorted(by_rate, reverse=True)
        and by_rate[0] > 0.98 > 0.85 > by_rate[1] > 0.7 > by_rate[2]
    )


@pytest.mark.parametrize("num_instances", [4, 6, 7, 20])
def test_attainment_of_many_instances_is_that_of_their_share(
    num_instances, make_design, make_load, monkeypatch
):
    sizes = []

    def sized(engine, num, *others):
        sizes.append(num)
        return single_cell(engine, num, *others)

    monkeypatch.setattr(scale_down_check, "single_cell", sized)
    instance_model, per_instance = make_design(), 6.0
    few = attainment(instance_model, steady(make_load, per_instance * MAX_SHARE), MAX_SHARE)
    many = attainment(
        instance_model, steady(make_load, per_instance * num_instances), num_instances
    )
    assert many.attainment == pytest.approx(few.attainment, abs=0.05)
    assert sizes == [MAX_SHARE, MAX_SHARE]


def test_attainment_of_small_cells_is_simulated_with_their_size(make_design, make_load):
    """Four instances in cells of two: no HP instance of a cell of three stands in for them."""
    traffic = steady(make_load, 20.0)
    pairs = attainment(make_design(max_cell=2), traffic, 4)
    assert pairs == attainment(make_design(max_cell=2), steady(make_load, 10.0), 2)


def test_attainment_with_a_queue_is_lower(make_design, make_load):
    load = make_load([3.0] * 60)
    free, behind = (
        attainment(make_design(strategy="vllm"), expected(load, n), 1) for n in (0, 200)
    )
    assert free.attainment > 0.98
    assert behind.attainment < free.attainment - 0.1


def test_attainment_of_survivors_is_that_of_the_last_minute(make_design, make_load):
    """The one remaining instance would suffice for the mean of ten minutes."""
    calm, peak = [1.0] * 54, [12.0] * 6
    peaky = last_minute(make_load([*calm, *peak]), 0)
    assert attainment(make_design(), peaky, 1).attainment < 0.8
    assert attainment(make_design(), last_minute(make_load(calm), 0), 1).attainment > 0.98


def test_attainment_of_rare_requests_repeats_the_traffic(make_design, make_load):
    rare = Traffic((0.02,), 60.0, [(100, 50)])
    estimate = attainment(make_design(slo=HOPELESS), rare, 1)
    assert (estimate.attainment, estimate.certain) == (0.0, True)


def test_attainment_with_equal_seeds_is_equal(make_design, make_load):
    instance_model, traffic = make_design(), steady(make_load, 11.0)
    first, again, other = (attainment(instance_model, traffic, 2, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    assert first.attainment == pytest.approx(other.attainment, abs=0.1)


def test_attainment_of_a_truncated_simulation_is_uncertain(make_design, make_load, monkeypatch):
    traffic = steady(make_load, 8.0)
    assert attainment(make_design(), traffic, 1).certain
    monkeypatch.setattr(scale_down_check, "MAX_ITERATIONS", 1000)
    assert not attainment(make_design(), traffic, 1).certain
    assert attainment(make_design(), traffic, 1, goal=0.99).certain, "it is missed for sure"
    assert attainment(make_design(), steady(make_load, 0.5), 1).certain


def test_attainment_with_early_misses_does_not_lose_the_goal(make_design, make_load, monkeypatch):
    """A miss is known at the first token, and an attained request at the last."""
    load = make_load([1.0] * 60, ((100, 400),) * 7 + ((1900, 400),))
    instance_model, traffic = make_design(slo=Slo(ttft_s=0.2, tpot_s=0.1)), expected(load, 0)
    goal = 0.6
    whole = attainment(instance_model, traffic, 1, goal)
    assert whole.certain and whole.attainment > goal
    monkeypatch.setattr(scale_down_check, "MAX_ITERATIONS", 90)
    cut = attainment(instance_model, traffic, 1, goal)
    assert cut.attainment < goal and not cut.certain


def test_attainment_of_a_class_with_a_low_goal_is_known_at_the_end(make_design, make_load):
    """Half of its requests are too long for its target, more than the default class may miss."""
    design = make_design(slo=Slo(20.0, 1.0))
    lax = SloClass(name="lax", slo=Slo(0.5, 1.0), attainment=0.3)
    load = replace(make_load([2.0] * 60, ((100, 60), (1900, 60))), classes=("lax", "lax"))
    with_class = dataclasses.replace(design, slo_classes=(lax,))
    found = attainment(with_class, expected(load, 0), 3, goal=0.9)
    assert found.certain and found.attainment == pytest.approx(0.9 * 0.5 / 0.3, rel=0.2)
    assert found == attainment(with_class, expected(load, 0), 3)
