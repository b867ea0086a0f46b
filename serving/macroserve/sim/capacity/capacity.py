"""Number of instances that a load needs, by simulation."""

from collections.abc import Callable
from dataclasses import replace

from macroserve.core.scaling.autoscale import START_S, CapacityEstimate
from macroserve.core.scaling.load import LoadReport
from macroserve.sim.capacity.scale_down_check import AttainmentEstimate, InstanceModel, attainment
from macroserve.sim.capacity.traffic import Traffic, expected, last_minute, surge

RATE_ALONE = 0.01
"""Requests per second at which requests seldom meet on an instance."""

SURGE = 0.9
"""Share of the goal to attain if the load grows during a start as much as it lately has. It may not
grow, and if it does, more instances can serve one start later."""

CLOSE = 0.98
"""Share of the highest possible attainment from which on more instances would not help."""


def need(
    instance_model: InstanceModel,
    load: LoadReport,
    *,
    goal: float,
    present: int,
    least: int,
    most: int,
    start_s: float = START_S,
    num_waiting: int = 0,
) -> CapacityEstimate:
    """Return the instances that the load needs, from half to twice the ``present`` number.

    goal: attainment to keep.
    least, most: bounds on the number of instances.
    start_s: start time of an instance, seconds, after which new instances serve.
    num_waiting: requests waiting for their prefill, which must be served in addition to new ones:
        within a minute by fewer instances, or once new instances serve.
    """
    coming, past = expected(load, num_waiting, start_s), last_minute(load, num_waiting)
    lowest = max((present + 1) // 2, least)
    if past is None:  # requests that wait are too old to be simulated
        return CapacityEstimate(0.0, present, present if num_waiting else lowest)
    requests_per_s = coming.num_expected / coming.duration_s if coming else 0.0
    grown = surge(load, start_s)
    check, surge_check = _GoalCheck(instance_model, goal), _GoalCheck(instance_model, SURGE * goal)
    worst = max(coming or past, past, key=lambda traffic: traffic.tokens_per_s)

    def keeps(num_instances: int) -> bool:
        stands = grown is None or surge_check.keeps(grown, num_instances)
        return stands and check.keeps(worst, num_instances)

    if present > least and keeps(present - 1):
        survivors = fewest(keeps, lowest, present - 1)
        is_certain = check.is_certain and surge_check.is_certain
        return CapacityEstimate(requests_per_s, present, survivors, is_certain)
    highest = min(2 * present, most)
    if coming is None or grown is None or present == highest:
        return CapacityEstimate(requests_per_s, present, present, check.is_certain)

    def misses(num_instances: int) -> bool:
        is_late = check.misses(coming, num_instances)
        return is_late or surge_check.misses(grown, num_instances)

    if not misses(present):
        return CapacityEstimate(requests_per_s, present, present, check.is_certain)
    if (ceiling := CLOSE * check.attainment_alone(coming)) < goal:
        check = _GoalCheck(instance_model, ceiling)
        surge_check = _GoalCheck(instance_model, SURGE * ceiling)
        if not misses(present):
            sure = check.is_certain
            return CapacityEstimate(requests_per_s, present, present, sure, helps=not sure)
    enough = fewest(lambda num: not misses(num), present + 1, highest)
    requests_per_s = max(requests_per_s, grown.num_expected / grown.duration_s)
    return CapacityEstimate(requests_per_s, enough, enough, check.is_certain)


class _GoalCheck:
    """Check of numbers of instances against a goal by simulation."""

    def __init__(self, instance_model: InstanceModel, goal: float) -> None:
        self.is_certain = True
        """Whether every simulation so far was reliable."""
        self._instance_model = instance_model
        self._goal = goal

    def keeps(self, traffic: Traffic, num_instances: int) -> bool:
        """Return whether the instances attain the goal, certain or not."""
        return self._estimate(traffic, num_instances).attainment >= self._goal

    def misses(self, traffic: Traffic, num_instances: int) -> bool:
        """Return whether the instances certainly miss the goal; a run that was cut short is not
        certain and does not call for more instances."""
        estimate = self._estimate(traffic, num_instances)
        return estimate.certain and estimate.attainment < self._goal

    def attainment_alone(self, traffic: Traffic) -> float:
        """Return the attainment with an instance for each request, which is the maximum."""
        seldom = replace(traffic, rates=(RATE_ALONE,))
        return attainment(self._instance_model, seldom, 1).attainment

    def _estimate(self, traffic: Traffic, num_instances: int) -> AttainmentEstimate:
        estimate = attainment(self._instance_model, traffic, num_instances, self._goal)
        self.is_certain = self.is_certain and estimate.certain
        return estimate


def fewest(suffices: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest number from ``low`` to ``high``, which suffices, that suffices."""
    while low < high:
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle + 1
    return low
