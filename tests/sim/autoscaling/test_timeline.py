"""The timeline counts instances by the time that they exist, and changes by their direction."""

import pytest

from macroserve.core.scaling.autoscale import REBOUND_S, TargetChange
from macroserve.sim.autoscaling.timeline import ExplainedChange, Moment, Timeline

STEADY = (Moment(0.0, 3, 3, 3),)


def timeline(*changes, moments=STEADY, end_s=100.0):
    explained = tuple(ExplainedChange(TargetChange(*change), "A reason.") for change in changes)
    return Timeline(end_s, moments, explained, 0)


def test_means_weigh_each_number_by_its_time_up_to_the_end() -> None:
    moments = (Moment(0.0, 3, 3, 3), Moment(50.0, 5, 3, 5), Moment(90.0, 5, 5, 5))
    found = timeline(moments=moments)
    assert found.mean_existing == pytest.approx((3 * 50 + 5 * 50) / 100)
    assert found.mean_ready == pytest.approx((3 * 90 + 5 * 10) / 100)
    assert timeline(moments=moments, end_s=60.0).mean_existing == pytest.approx((150 + 50) / 60)
    assert found.most_existing == 5


def test_load_of_one_moment_has_its_number() -> None:
    assert timeline(end_s=0.0).mean_existing == 3.0


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ([], (0, 0, 0)),
        ([(10, 3, 4), (20, 4, 5)], (2, 0, 0)),
        ([(10, 4, 3), (20, 3, 4)], (1, 1, 1)),
        ([(10, 4, 3), (10 + REBOUND_S, 3, 4)], (1, 1, 1)),
        ([(10, 4, 3), (11 + REBOUND_S, 3, 4)], (1, 1, 0)),
        ([(10, 3, 4), (20, 4, 3)], (1, 1, 0)),
        ([(10, 4, 3), (20, 3, 2), (30, 2, 4), (40, 4, 2), (50, 2, 3)], (2, 3, 2)),
    ],
)
def test_changes_are_counted_by_direction_and_reversals_in_time(changes, counts) -> None:
    found = timeline(*changes)
    assert (found.num_ups, found.num_downs, found.num_flaps) == counts
