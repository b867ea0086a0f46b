"""Simulated alerts by the chart's rules, with the delays of Prometheus and Alertmanager.

The rules are those of ``helm/macroserve/rules``; rates are computed without Prometheus's
extrapolation.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from macroserve.core.scaling.signals import ATTAINMENT_LOW, QUEUES_LATE

EVALUATION_S = 5.0
"""Interval of evaluations and of scrapes (the chart's ``monitoring.scrapeInterval``), seconds."""

FOR_S = 10.0
"""Time for which a rule must hold before its alert fires (``for`` of both rules), seconds."""

NOTIFY_S = 10.0
"""Maximum delay of Alertmanager's notifications (``group_interval``), seconds."""

MINUTE_S, FIVE_MINUTES_S = 60.0, 300.0
FEWEST_REQUESTS = 20
"""Minimum requests in a window for a meaningful attainment."""


class Ending(NamedTuple):
    """Outcome of a finished request."""

    at_s: float
    slo_class: str
    attained: bool


class Alerts:
    """Alerts of one MacroInstance. ``evaluate`` is called every ``EVALUATION_S``.

    goals: target attainment by SLO class.
    """

    def __init__(self, goals: Mapping[str, float]) -> None:
        self._goals = goals
        self._ended: deque[Ending] = deque()
        self._since_s: dict[tuple[str, str], float] = {}
        self._untold: deque[tuple[float, frozenset[str]]] = deque()
        self._told: frozenset[str] = frozenset()
        self._scraped_late = False

    def note(self, ending: Ending) -> None:
        """Count a request that ended or was refused."""
        self._ended.append(ending)

    def evaluate(self, is_late: bool, now: float) -> frozenset[str]:
        """Evaluate the rules on the last scrape; return the alerts of which the operator has been
        notified.

        is_late: whether a new request would be late in every cell; scraped for the next evaluation.
        """
        scraped_s = now - EVALUATION_S
        while self._ended and self._ended[0].at_s <= scraped_s - FIVE_MINUTES_S:
            self._ended.popleft()
        holding = {(ATTAINMENT_LOW, name) for name in self._goals if self._is_low(name, scraped_s)}
        if self._scraped_late:
            holding.add((QUEUES_LATE, ""))
        self._scraped_late = is_late
        self._since_s = {each: self._since_s.get(each, now) for each in holding}
        firing = frozenset(
            name for (name, _), since_s in self._since_s.items() if now - since_s >= FOR_S
        )
        last = self._untold[-1][1] if self._untold else self._told
        if firing != last:
            self._untold.append((now + NOTIFY_S, firing))
        while self._untold and self._untold[0][0] <= now:
            _, self._told = self._untold.popleft()
        return self._told

    def _is_low(self, slo_class: str, until_s: float) -> bool:
        goal = self._goals[slo_class]
        of_class = [
            each for each in self._ended if each.slo_class == slo_class and each.at_s <= until_s
        ]
        recent = [each for each in of_class if each.at_s > until_s - MINUTE_S]
        if not recent or _attainment(recent) >= goal:
            return False
        if len(recent) >= FEWEST_REQUESTS:
            return True
        return len(of_class) >= FEWEST_REQUESTS and _attainment(of_class) < goal


def _attainment(endings: Iterable[Ending]) -> float:
    attained = [each.attained for each in endings]
    return sum(attained) / len(attained)
