"""A circuit breaker opens for each instance that one ingress cannot reach, although its cell
may."""

from collections.abc import Collection
from dataclasses import dataclass

from macroserve.core.backoff import Backoff
from macroserve.core.routing.attempts import Run

BACKOFF = Backoff(first_s=5.0, max_s=60.0)
"""Time for which an instance is avoided after consecutive failures."""
TRY_S = 15.0
"""Seconds allowed for the one request that tests whether the instance can be reached again."""


@dataclass(slots=True)
class _Entry:
    failures: int
    until_s: float


class AvoidList:
    """The list holds the instances to avoid: ``note`` records a failure, ``clear`` a success."""

    def __init__(self) -> None:
        self._entries: dict[Run, _Entry] = {}

    def note(self, run: Run, now: float) -> None:
        failures = self._entries[run].failures + 1 if run in self._entries else 1
        self._entries[run] = _Entry(failures, now + BACKOFF.delay_s(failures))

    def clear(self, run: Run) -> None:
        self._entries.pop(run, None)

    def names(self, runs: Collection[Run], now: float) -> frozenset[str]:
        """Return the names among ``runs`` to avoid; none if that would be all of them.

        When its time is over, an instance is left out of one answer, so that a single request tries
        it; then it is avoided again until that request reports.
        """
        self._entries = {run: entry for run, entry in self._entries.items() if run in runs}
        avoided = set[str]()
        for run, entry in self._entries.items():
            if now < entry.until_s:
                avoided.add(run.instance)
            else:
                entry.until_s = now + TRY_S
        return frozenset(avoided) if len(avoided) < len(runs) else frozenset()
