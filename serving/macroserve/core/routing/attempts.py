"""Attempts to run a request on instances that break or cannot be reached.

When an instance breaks, any of its requests may be the cause. After two broken attempts a request
is a suspect: its last attempt is a *trial*, and an instance runs one trial at a time. A break
during a trial is blamed on that request alone, which then fails. Its earlier breaks are thereby
explained and no longer count against the requests that ran next to it.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from macroserve.core.backoff import Backoff

MAX_BROKEN = 3
"""Maximum instances that break while running a request. A smaller limit would fail requests for
machine faults; NVIDIA Dynamo's guide suggests the same number."""
MAX_BROKEN_IN_ALL = 3 * MAX_BROKEN
"""Limit including explained breaks, so that no request is retried forever because of others."""
MIN_PROBATION_S, MAX_PROBATION_S = 2.0, 30.0
"""Bounds of a trial, seconds. The upper one limits how long suspects wait for each other."""
PROBATION_FACTOR = 2.0
"""Duration of a trial per duration of the shortest broken attempt. A request breaks instances after
about the same time; queues differ by less than this factor."""
FREE_RETRIES = 2
RETRY_BACKOFF = Backoff(first_s=0.1, max_s=2.0)

AVOID_BACKOFF = Backoff(first_s=5.0, max_s=60.0)
"""How long an ingress avoids an instance after consecutive failures to reach it."""
TRY_S = 15.0
"""Seconds allowed for the single request that tests whether an instance is reachable again."""


class InstanceRun(NamedTuple):
    """One incarnation of an instance; a break does not count against the next one."""

    instance: str
    incarnation: int


class Break(NamedTuple):
    """An attempt that ended because its instance broke."""

    run: InstanceRun
    lasted_s: float
    """Seconds for which the instance had the request."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """Outcomes of one request's attempts so far."""

    breaks: tuple[Break, ...] = ()
    """Attempts that an instance accepted and did not complete."""
    failed: frozenset[str] = frozenset()
    """Names of instances that should not get the request again."""
    num_unreachable: int = 0
    """Consecutive attempts that reached no instance."""

    def broken(self, run: InstanceRun, lasted_s: float) -> "Attempts":
        return Attempts((*self.breaks, Break(run, lasted_s)), self.failed | {run.instance})

    def handed_back(self, instance: str) -> "Attempts":
        """Add an offloaded or drained attempt, for which nothing is at fault."""
        return replace(self, failed=self.failed | {instance}, num_unreachable=0)

    def unreachable(self, instance: str) -> "Attempts":
        """Add an attempt that failed to connect or to prove the instance's identity."""
        return replace(
            self, failed=self.failed | {instance}, num_unreachable=self.num_unreachable + 1
        )

    def counted(self, explained: Collection[InstanceRun]) -> tuple[Break, ...]:
        """Return the breaks not known to be caused by another request."""
        return tuple(b for b in self.breaks if b.run not in explained)

    def is_suspect(self, explained: Collection[InstanceRun]) -> bool:
        """Return whether the next attempt is the last one."""
        return len(self.counted(explained)) >= MAX_BROKEN - 1

    def is_over(self, explained: Collection[InstanceRun]) -> bool:
        return len(self.counted(explained)) >= MAX_BROKEN or len(self.breaks) >= MAX_BROKEN_IN_ALL

    def probation_s(self, explained: Collection[InstanceRun]) -> float:
        """Return the duration of a trial, seconds, after which the request is cleared."""
        shortest_s = min((b.lasted_s for b in self.counted(explained)), default=0.0)
        return min(MAX_PROBATION_S, max(MIN_PROBATION_S, PROBATION_FACTOR * shortest_s))

    @property
    def back_off_s(self) -> float:
        """Return the seconds before the next attempt, 0 for the first retries."""
        return RETRY_BACKOFF.delay_s(self.num_unreachable - FREE_RETRIES)


@dataclass(slots=True)
class _Avoided:
    failures: int
    until_s: float


class AvoidList:
    """Circuit breaker of one ingress, for instances that it cannot reach though their cell may."""

    def __init__(self) -> None:
        self._avoided: dict[InstanceRun, _Avoided] = {}

    def note(self, run: InstanceRun, now: float) -> None:
        """Record a failure to reach the instance; ``clear`` records a success."""
        failures = self._avoided[run].failures + 1 if run in self._avoided else 1
        self._avoided[run] = _Avoided(failures, now + AVOID_BACKOFF.delay_s(failures))

    def clear(self, run: InstanceRun) -> None:
        self._avoided.pop(run, None)

    def names(self, runs: Collection[InstanceRun], now: float) -> frozenset[str]:
        """Return the names among ``runs`` to avoid; none if that would be all of them.

        After its time, an instance is left out of one answer, so that a single request tries it.
        """
        self._avoided = {run: each for run, each in self._avoided.items() if run in runs}
        names = set[str]()
        for run, avoided in self._avoided.items():
            if now < avoided.until_s:
                names.add(run.instance)
            else:
                avoided.until_s = now + TRY_S
        return frozenset(names) if len(names) < len(runs) else frozenset()
