"""Which share of a cell's instances to give to the high-priority pool, found by simulation."""

from dataclasses import replace

from macroserve.sim.capacity.scale_down_check import InstanceModel, attainment
from macroserve.sim.capacity.traffic import Traffic

RATIOS = (0.0, 1 / 3)
"""The shares that are tried: none, and the best of those that Ascendra tried (section 8.4)."""

GAIN = 0.05
"""Another share has to promise so much more attainment: of so few requests less is chance."""


def other_ratios(present: float) -> list[float]:
    """Return the shares to try in place of the present one."""
    return [ratio for ratio in RATIOS if ratio != present]


def best_ratio(
    instance_model: InstanceModel, traffic: Traffic, num_instances: int, goal: float
) -> float:
    """The share with which most requests are within their targets.

    It is the present share where that attains the goal, or no other is clearly better.
    """
    present = attainment(instance_model, traffic, num_instances).attainment
    if present >= goal:
        return instance_model.high_priority_ratio
    best, least = instance_model.high_priority_ratio, present + GAIN
    for ratio in other_ratios(instance_model.high_priority_ratio):
        other = replace(instance_model, high_priority_ratio=ratio)
        tried = attainment(other, traffic, num_instances)
        if tried.certain and tried.attainment > least:
            best, least = ratio, tried.attainment
    return best
