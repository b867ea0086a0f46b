"""How often a request is tried when instances break under it, and who is taken for the cause.

An instance that breaks takes all its requests with it, and any of them may be the cause. After two
broken attempts a request is a suspect: its last attempt is a *trial*, of which an instance has one
at a time. What breaks under a trial is blamed on that request alone, which then ends. The breaks
that it went through are explained and count against nobody else any more, so that requests that
only ran beside it are not ended with it.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

MAX_BROKEN = 3
"""Instances that may break under one request. Fewer would end requests for faults of machines;
NVIDIA Dynamo's guide suggests as many."""
MAX_BROKEN_IN_ALL = 3 * MAX_BROKEN
"""With the explained ones, so that no request goes on for ever by others' faults."""
MIN_PROBATION_S, MAX_PROBATION_S = 2.0, 30.0
"""Bounds of a trial. The lower one is for causes that take effect at once, the upper one keeps
suspects from waiting long for each other."""
PROBATION_FACTOR = 2.0
"""A request that breaks instances needs about as long each time: queues differ by less."""
FREE_RETRIES = 2
FIRST_BACK_OFF_S, MAX_BACK_OFF_S = 0.1, 2.0


class Run(NamedTuple):
    """One incarnation of an instance: what broke once does not count against its successor."""

    instance: str
    incarnation: int


class Break(NamedTuple):
    """An instance broke under the request, which it had had for ``lasted_s``."""

    run: Run
    lasted_s: float


@dataclass(frozen=True, slots=True)
class Attempts:
    """What became of one request's attempts so far.

    breaks: attempts that an instance took in and did not end. failed: names of instances that
    should not get the request again. num_unreachable: attempts that reached no instance since one
    last did.
    """

    breaks: tuple[Break, ...] = ()
    failed: frozenset[str] = frozenset()
    num_unreachable: int = 0

    def broken(self, run: Run, lasted_s: float) -> "Attempts":
        return Attempts((*self.breaks, Break(run, lasted_s)), self.failed | {run.instance})

    def handed_back(self, instance: str) -> "Attempts":
        """Offloaded or drained: nothing is wrong with the instance or the request."""
        return replace(self, failed=self.failed | {instance}, num_unreachable=0)

    def unreachable(self, instance: str) -> "Attempts":
        """The instance did not take it in: connection refused, or not proved who it is."""
        return replace(
            self, failed=self.failed | {instance}, num_unreachable=self.num_unreachable + 1
        )

    def counted(self, explained: Collection[Run]) -> tuple[Break, ...]:
        """The breaks that no other request is known to have caused."""
        return tuple(b for b in self.breaks if b.run not in explained)

    def is_suspect(self, explained: Collection[Run]) -> bool:
        """Whether the next attempt is the last one."""
        return len(self.counted(explained)) >= MAX_BROKEN - 1

    def is_over(self, explained: Collection[Run]) -> bool:
        return len(self.counted(explained)) >= MAX_BROKEN or len(self.breaks) >= MAX_BROKEN_IN_ALL

    def probation_s(self, explained: Collection[Run]) -> float:
        """How long a trial lasts: were the request the cause, its instance would have broken by
        then, as its shortest broken attempt tells."""
        shortest_s = min((b.lasted_s for b in self.counted(explained)), default=0.0)
        return min(MAX_PROBATION_S, max(MIN_PROBATION_S, PROBATION_FACTOR * shortest_s))

    @property
    def back_off_s(self) -> float:
        """Before the next attempt: nothing while others may be better, then longer and longer."""
        doublings = self.num_unreachable - FREE_RETRIES
        if doublings <= 0:
            return 0.0
        return min(MAX_BACK_OFF_S, FIRST_BACK_OFF_S * 2.0 ** min(doublings - 1, 10))
