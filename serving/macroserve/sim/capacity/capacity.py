"""Find by simulation how many instances a load needs."""

from collections.abc import Callable
from dataclasses import replace

from macroserve.core.scaling.autoscale import START_S, CapacityEstimate
from macroserve.core.scaling.load import LoadReport
from macroserve.sim.capacity.scale_down_check import AttainmentEstimate, InstanceModel, attainment
from macroserve.sim.capacity.traffic import Traffic, expected, last_minute, surge

RATE_ALONE = 0.01
"""Requests per second that are so rare that they seldom meet on an instance."""

SURGE = 0.9
"""Share of the goal to attain if the load grows during a start as much as it lately has. It may not
grow, and once it does, the instances that it needs come a start later."""

CLOSE = 0.98
"""Share of the highest possible attainment that is enough: more instances would not help."""


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
    """Return the number of instances that the load needs, from half to twice the ``present``
    number.

    goal: the attainment to keep.
    least: lower bound on the number of instances.
    most: upper bound on the number of instances.
    start_s: time that an instance takes to start, seconds: the load is forecast for then.
    num_waiting: requests that wait for their prefill now, late or not: they are to be served beside
        the requests that arrive, by fewer instances within a minute, by more once these serve.
    """
    coming, past = expected(load, num_waiting, start_s), last_minute(load, num_waiting)
    lowest = max((present + 1) // 2, least)
    if past is None:  # what waits came so long ago that it cannot be simulated
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
    """The goal check simulates numbers of instances against a goal.

    is_certain: whether every simulation so far could be relied on.
    """

    def __init__(self, instance_model: InstanceModel, goal: float) -> None:
        self.is_certain = True
        self._instance_model = instance_model
        self._goal = goal

    def keeps(self, traffic: Traffic, num_instances: int) -> bool:
        """Return whether so many instances attain the goal, as far as the simulation tells."""
        return self._estimate(traffic, num_instances).attainment >= self._goal

    def misses(self, traffic: Traffic, num_instances: int) -> bool:
        """Return whether so many instances certainly miss the goal; a run that was cut short is not
        certain, and calls for no more instances."""
        estimate = self._estimate(traffic, num_instances)
        return estimate.certain and estimate.attainment < self._goal

    def attainment_alone(self, traffic: Traffic) -> float:
        """Return the attainment of requests with an instance each: more instances add nothing."""
        seldom = replace(traffic, rates=(RATE_ALONE,))
        return attainment(self._instance_model, seldom, 1).attainment

    def _estimate(self, traffic: Traffic, num_instances: int) -> AttainmentEstimate:
        estimate = attainment(self._instance_model, traffic, num_instances, self._goal)
        self.is_certain = self.is_certain and estimate.certain
        return estimate


def fewest(suffices: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest number from ``low`` on that suffices; ``high`` is known to suffice."""
    while low < high:
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle + 1
    return low
