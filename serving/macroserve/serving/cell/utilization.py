"""Utilization of a cell: the share of time in which its instances have work."""

from collections import deque

WINDOW_S = 15
"""About one scrape interval of Prometheus."""


class UtilizationMeter:
    """Busy and total time of the instances in the rotation. An instance is busy from a status that
    shows a running or waiting request until one that shows none."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[bool, float]] = {}
        self._busy_s = 0.0
        self._time_s = 0.0
        self._history: deque[tuple[float, float]] = deque([(0.0, 0.0)], maxlen=WINDOW_S + 1)

    def observe(self, name: str, busy: bool, now: float) -> None:
        """Record an instance's latest status. ``now`` never decreases."""
        self._advance(name, now)
        self._last[name] = busy, now

    def forget(self, name: str) -> None:
        """Stop counting an instance."""
        self._last.pop(name, None)

    def tick(self, now: float) -> None:
        """Advance all instances to ``now``; called every second."""
        for name in self._last:
            self._advance(name, now)
        self._history.append((self._busy_s, self._time_s))

    @property
    def share(self) -> float:
        """Return the busy share of the last WINDOW_S seconds, 0 to 1; 0 without instances."""
        (busy_from, time_from), (busy_s, time_s) = self._history[0], self._history[-1]
        return (busy_s - busy_from) / (time_s - time_from) if time_s > time_from else 0.0

    def _advance(self, name: str, now: float) -> None:
        if name in self._last:
            busy, since = self._last[name]
            self._time_s += now - since
            self._busy_s += now - since if busy else 0.0
            self._last[name] = busy, now
