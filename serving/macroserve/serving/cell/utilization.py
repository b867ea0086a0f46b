"""The share of time in which the instances of a cell have work."""

from collections import deque

WINDOW_S = 15
"""About as long as Prometheus waits between two looks."""


class UtilizationMeter:
    """An instance is busy from a status that shows a request, running or waiting, until one that
    shows none; it is counted as long as it is in sight."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[bool, float]] = {}
        self._busy_s = 0.0
        self._time_s = 0.0
        self._history: deque[tuple[float, float]] = deque([(0.0, 0.0)], maxlen=WINDOW_S + 1)

    def observe(self, name: str, busy: bool, now: float) -> None:
        """Take an instance's newest status. The clock never goes back."""
        self._advance(name, now)
        self._last[name] = busy, now

    def forget(self, name: str) -> None:
        """Leave out an instance that is gone."""
        self._last.pop(name, None)

    def tick(self, now: float) -> None:
        """Bring all instances up to ``now``; the caller does so every second."""
        for name in self._last:
            self._advance(name, now)
        self._history.append((self._busy_s, self._time_s))

    @property
    def share(self) -> float:
        """Return the busy share of the last WINDOW_S seconds, 0 to 1; 0 without any instance."""
        (busy_from, time_from), (busy_s, time_s) = self._history[0], self._history[-1]
        return (busy_s - busy_from) / (time_s - time_from) if time_s > time_from else 0.0

    def _advance(self, name: str, now: float) -> None:
        if name in self._last:
            busy, since = self._last[name]
            self._time_s += now - since
            self._busy_s += now - since if busy else 0.0
            self._last[name] = busy, now
