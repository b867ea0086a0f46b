"""A circuit breaker opens for each instance that one ingress cannot reach, although its cell
may."""

from collections.abc import Collection
from dataclasses import dataclass

from macroserve.core.routing.attempts import Run

FIRST_S, LONGEST_S = 5.0, 60.0
"""Seconds for which an instance is avoided after its first failure, doubled with each further one,
and at most."""
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
        avoided_s = min(LONGEST_S, FIRST_S * 2.0 ** min(failures - 1, 10))
        self._entries[run] = _Entry(failures, now + avoided_s)

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
