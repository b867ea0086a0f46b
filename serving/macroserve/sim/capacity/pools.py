"""Share of a cell's instances in the HP pool, by simulation."""

from dataclasses import replace

from macroserve.sim.capacity.scale_down_check import InstanceModel, attainment
from macroserve.sim.capacity.traffic import Traffic

RATIOS = (0.0, 1 / 3)
"""Shares to try: none, and Ascendra's best (section 8.4)."""

GAIN = 0.05
"""Minimum gain in attainment for a change: with few requests, a smaller one is chance."""


def other_ratios(present: float) -> list[float]:
    return [ratio for ratio in RATIOS if ratio != present]


def best_ratio(
    instance_model: InstanceModel, traffic: Traffic, num_instances: int, goal: float
) -> float:
    """Return the share with the highest attainment, or the present one if it attains the goal or no
    other is clearly better."""
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
