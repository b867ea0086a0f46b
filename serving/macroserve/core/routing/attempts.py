"""A request has a limited number of attempts when the instances that run it break.

An instance that breaks takes all its requests with it, and any of them may be the cause. After two
broken attempts a request is a suspect: its last attempt is a *trial*, and an instance runs one
trial at a time. A break under a trial is blamed on that request alone, which then ends. The breaks
that the request went through are explained and no longer count against any other request, so that
requests that only ran beside it are not ended with it.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from macroserve.core.backoff import Backoff

MAX_BROKEN = 3
"""Instances that may break under one request. Fewer would end requests for faults of machines;
NVIDIA Dynamo's guide suggests the same number."""
MAX_BROKEN_IN_ALL = 3 * MAX_BROKEN
"""Limit that includes explained breaks, so that no request is retried for ever because of
others."""
MIN_PROBATION_S, MAX_PROBATION_S = 2.0, 30.0
"""Bounds of a trial, seconds. The lower one is for causes that take effect at once, the upper one
keeps suspects from waiting long for each other."""
PROBATION_FACTOR = 2.0
"""Duration of a trial per duration of the shortest broken attempt. A request that breaks instances
needs about as long each time; queues differ by less than this factor."""
FREE_RETRIES = 2
BACKOFF = Backoff(first_s=0.1, max_s=2.0)


class Run(NamedTuple):
    """A run is one incarnation of an instance: a break does not count against the next
    incarnation."""

    instance: str
    incarnation: int


class Break(NamedTuple):
    """An instance broke under a request."""

    run: Run
    lasted_s: float
    """Seconds for which the instance had the request."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """The record holds the outcomes of one request's attempts so far."""

    breaks: tuple[Break, ...] = ()
    """Attempts that an instance accepted and did not complete."""
    failed: frozenset[str] = frozenset()
    """Names of the instances that should not get the request again."""
    num_unreachable: int = 0
    """Attempts that reached no instance since the last that reached one."""

    def broken(self, run: Run, lasted_s: float) -> "Attempts":
        return Attempts((*self.breaks, Break(run, lasted_s)), self.failed | {run.instance})

    def handed_back(self, instance: str) -> "Attempts":
        """Add an offloaded or drained attempt: neither the instance nor the request is at fault."""
        return replace(self, failed=self.failed | {instance}, num_unreachable=0)

    def unreachable(self, instance: str) -> "Attempts":
        """Add an attempt that the instance did not accept: connection refused, or identity not
        proved."""
        return replace(
            self, failed=self.failed | {instance}, num_unreachable=self.num_unreachable + 1
        )

    def counted(self, explained: Collection[Run]) -> tuple[Break, ...]:
        """Return the breaks that no other request is known to have caused."""
        return tuple(b for b in self.breaks if b.run not in explained)

    def is_suspect(self, explained: Collection[Run]) -> bool:
        """Return whether the next attempt is the last one."""
        return len(self.counted(explained)) >= MAX_BROKEN - 1

    def is_over(self, explained: Collection[Run]) -> bool:
        return len(self.counted(explained)) >= MAX_BROKEN or len(self.breaks) >= MAX_BROKEN_IN_ALL

    def probation_s(self, explained: Collection[Run]) -> float:
        """Return the duration of a trial, seconds.

        A request that breaks instances would have broken this one by then, judged by its shortest
        broken attempt.
        """
        shortest_s = min((b.lasted_s for b in self.counted(explained)), default=0.0)
        return min(MAX_PROBATION_S, max(MIN_PROBATION_S, PROBATION_FACTOR * shortest_s))

    @property
    def back_off_s(self) -> float:
        """Return the seconds before the next attempt: 0 while other instances may be reachable,
        then increasing."""
        return BACKOFF.delay_s(self.num_unreachable - FREE_RETRIES)
