"""Find by simulation the share of a cell's instances to give to the high-priority pool."""

from dataclasses import replace

from macroserve.sim.capacity.scale_down_check import InstanceModel, attainment
from macroserve.sim.capacity.traffic import Traffic

RATIOS = (0.0, 1 / 3)
"""Shares that are tried: no HP instances, and the best shares of those that Ascendra tried (section
8.4)."""

GAIN = 0.05
"""Attainment that another share has to gain at least: with so few requests a smaller gain is
chance."""


def other_ratios(present: float) -> list[float]:
    """Return the shares to try in place of the present one."""
    return [ratio for ratio in RATIOS if ratio != present]


def best_ratio(
    instance_model: InstanceModel, traffic: Traffic, num_instances: int, goal: float
) -> float:
    """Return the share with which most requests are within their targets.

    The present share is kept where it attains the goal, or where no other share is clearly better.
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
