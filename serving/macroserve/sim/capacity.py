"""How many instances a load needs, found by simulating it."""

from collections.abc import Callable
from dataclasses import replace

from macroserve.core.reports import LoadReport
from macroserve.core.scaling.autoscale import Need
from macroserve.sim.survivors import Design, attainment
from macroserve.sim.traffic import Traffic, busiest, expected

RATE_ALONE = 0.01
"""Requests per second that seldom meet another on an instance."""

CLOSE = 0.98
"""Instances that attain this share of what is possible at all are enough: more would not help."""


def need(
    design: Design,
    load: LoadReport,
    *,
    goal: float,
    present: int,
    least: int,
    most: int,
    num_waiting: int = 0,
) -> Need:
    """What the load needs, between half and twice the ``present`` number of instances.

    goal: the attainment to keep. least, most: bounds on the instances.
    num_waiting: requests that wait for their prefill now.
    """
    coming, past = expected(load, num_waiting), busiest(load, num_waiting)
    if coming is None or past is None:
        return Need(0.0, present, max((present + 1) // 2, least))
    requests_per_s = coming.num_expected / coming.duration_s
    judge = _Judge(design, goal)
    worst = max(coming, past, key=lambda traffic: traffic.tokens_per_s)
    if present > least and judge.keeps(worst, present - 1):
        lowest = max((present + 1) // 2, least)
        survivors = _fewest(lambda num: judge.keeps(worst, num), lowest, present - 1)
        return Need(requests_per_s, present, survivors, judge.is_certain)
    highest = min(2 * present, most)
    if present == highest or judge.keeps(coming, present):
        return Need(requests_per_s, present, present, judge.is_certain)
    if (ceiling := CLOSE * judge.attainment_alone(coming)) < goal:
        judge = _Judge(design, ceiling)
        if judge.keeps(coming, present):
            return Need(requests_per_s, present, present, judge.is_certain, helps=False)
    enough = _fewest(lambda num: judge.keeps(coming, num), present + 1, highest)
    return Need(requests_per_s, enough, enough, judge.is_certain)


class _Judge:
    """is_certain: whether every simulation so far could be relied on."""

    def __init__(self, design: Design, goal: float) -> None:
        self.is_certain = True
        self._design = design
        self._goal = goal

    def keeps(self, traffic: Traffic, num_instances: int) -> bool:
        """Whether so many instances keep the attainment at the goal."""
        estimate = attainment(self._design, traffic, num_instances, self._goal)
        self.is_certain = self.is_certain and estimate.certain
        return estimate.attainment >= self._goal

    def attainment_alone(self, traffic: Traffic) -> float:
        """Of requests that have an instance for themselves: no number does better than that."""
        seldom = replace(traffic, rates=(RATE_ALONE,), num_waiting=0)
        return attainment(self._design, seldom, 1).attainment


def _fewest(suffices: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest number from ``low`` on that suffices, as ``high`` does."""
    while low < high:
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle + 1
    return low
