import pytest

from macroserve.core.request import Slo
from macroserve.sim.capacity import pools
from macroserve.sim.capacity.pools import GAIN, RATIOS, best_ratio
from macroserve.sim.capacity.scale_down_check import AttainmentEstimate
from macroserve.sim.capacity.traffic import expected

GOAL = 0.9
NONE, THIRD = RATIOS


class Played:
    """Attainments by ratio, with a record of the queried ratios."""

    def __init__(self, monkeypatch, attainments, uncertain=()):
        self.asked = []

        def attainment(instance_model, traffic, num_instances):
            ratio = instance_model.high_priority_ratio
            self.asked.append((ratio, num_instances))
            return AttainmentEstimate(attainments[ratio], ratio not in uncertain)

        monkeypatch.setattr(pools, "attainment", attainment)


@pytest.fixture
def find(monkeypatch, make_design, make_load):
    def find(present, attainments, uncertain=()):
        played = Played(monkeypatch, attainments, uncertain)
        instance_model = make_design(high_priority_ratio=present)
        ratio = best_ratio(instance_model, expected(make_load([2.0] * 60), 0), 6, GOAL)
        return ratio, played.asked

    return find


@pytest.mark.parametrize(
    ("present", "attainments", "ratio"),
    [
        (THIRD, {NONE: 0.8, THIRD: 0.5}, NONE),
        (NONE, {NONE: 0.5, THIRD: 0.8}, THIRD),
        (NONE, {NONE: 0.8, THIRD: 0.5}, NONE),
        (THIRD, {NONE: 0.5 + GAIN, THIRD: 0.5}, THIRD),  # may be chance
        (0.5, {NONE: 0.6, THIRD: 0.7, 0.5: 0.5}, THIRD),
        (0.5, {NONE: 0.7, THIRD: 0.6, 0.5: 0.5}, NONE),
        (0.5, {NONE: 0.5, THIRD: 0.4, 0.5: 0.5}, 0.5),
    ],
)
def test_best_ratio_is_the_one_that_serves_most(find, present, attainments, ratio):
    found, asked = find(present, attainments)
    assert found == ratio
    assert asked[0] == (present, 6)


def test_best_ratio_that_attains_the_goal_is_not_changed(find):
    ratio, asked = find(THIRD, {NONE: 1.0, THIRD: GOAL})
    assert (ratio, asked) == (THIRD, [(THIRD, 6)])


def test_best_ratio_of_a_truncated_simulation_is_the_present_one(find):
    assert find(THIRD, {NONE: 0.9, THIRD: 0.5}, uncertain=[NONE])[0] == THIRD


def test_best_ratio_behind_long_prompts_has_a_pool(make_design, make_load):
    """A fourth of the prompts takes half of the target for the first token: where others may pass
    those elsewhere, more are in time."""
    lengths = ((100, 100),) * 6 + ((1500, 100),) * 2
    instance_model = make_design(slo=Slo(1.0, 0.1), high_priority_ratio=NONE, strategy="ascendra")
    assert (
        best_ratio(instance_model, expected(make_load([12.0] * 60, lengths), 0), 3, GOAL) == THIRD
    )
    calm = expected(make_load([1.0] * 60, lengths), 0)
    assert best_ratio(instance_model, calm, 3, GOAL) == NONE


def test_best_ratio_of_equal_requests_has_no_pool(make_design, make_load):
    lengths = ((200, 400),) * 8
    instance_model = make_design(high_priority_ratio=THIRD)
    busy = expected(make_load([6.0] * 60, lengths), 0)
    assert best_ratio(instance_model, busy, 3, GOAL) == NONE
    calm = expected(make_load([1.0] * 60, lengths), 0)
    assert best_ratio(instance_model, calm, 3, GOAL) == THIRD
