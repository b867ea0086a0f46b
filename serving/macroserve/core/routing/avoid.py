"""Instances that one ingress cannot reach, though their cell may: a circuit breaker for each."""

from collections.abc import Collection
from dataclasses import dataclass

from macroserve.core.routing.attempts import Run

FIRST_S, LONGEST_S = 5.0, 60.0
"""For how long an instance is avoided after its first failure; twice as long after each further."""
TRY_S = 15.0
"""How long the one request has that tries whether it can be reached again."""


@dataclass(slots=True)
class _Entry:
    failures: int
    until_s: float


class AvoidList:
    """``names`` tells whom to avoid; ``note`` a failure, ``clear`` a success."""

    def __init__(self) -> None:
        self._entries: dict[Run, _Entry] = {}

    def note(self, run: Run, now: float) -> None:
        failures = self._entries[run].failures + 1 if run in self._entries else 1
        avoided_s = min(LONGEST_S, FIRST_S * 2.0 ** min(failures - 1, 10))
        self._entries[run] = _Entry(failures, now + avoided_s)

    def clear(self, run: Run) -> None:
        self._entries.pop(run, None)

    def names(self, runs: Collection[Run], now: float) -> frozenset[str]:
        """Those of ``runs`` to avoid; nobody where that would be all of them.

        Past its time an instance is left out of one answer, so that one request tries it and not
        all that come, and then avoided again until that one tells.
        """
        self._entries = {run: entry for run, entry in self._entries.items() if run in runs}
        avoided = set[str]()
        for run, entry in self._entries.items():
            if now < entry.until_s:
                avoided.add(run.instance)
            else:
                entry.until_s = now + TRY_S
        return frozenset(avoided) if len(avoided) < len(runs) else frozenset()
