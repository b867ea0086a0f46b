"""Estimates come late, and those of other instances are dropped."""

from macroserve.core.scaling.autoscale import CapacityEstimate
from macroserve.sim.autoscaling.autoscaler import EVERY_S, TAKES_S, Estimates


def estimate(num: int):
    return lambda: CapacityEstimate(1.0, num, num)


def test_estimate_is_known_once_it_is_made() -> None:
    estimates = Estimates()
    assert estimates.latest(estimate(3), 10.0) is None
    assert estimates.latest(estimate(4), 10.0 + TAKES_S / 2) is None
    assert estimates.latest(estimate(5), 10.0 + TAKES_S) == estimate(3)()


def test_next_estimate_begins_after_a_pause() -> None:
    estimates = Estimates()
    estimates.latest(estimate(1), 0.0)
    estimates.latest(estimate(2), TAKES_S)
    estimates.latest(estimate(3), TAKES_S + EVERY_S)
    assert estimates.latest(estimate(4), 2 * TAKES_S + EVERY_S) == estimate(3)()


def test_estimate_of_other_instances_is_dropped_while_it_is_made_too() -> None:
    estimates = Estimates()
    estimates.latest(estimate(1), 0.0)
    estimates.forget()
    assert estimates.latest(estimate(2), TAKES_S) is None
    assert estimates.latest(estimate(3), 2 * TAKES_S) == estimate(2)()
    estimates.forget()
    assert estimates.latest(estimate(4), 2 * TAKES_S) is None
