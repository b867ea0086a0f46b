"""Firing alerts of each MacroInstance, as Alertmanager last reported them."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from macroserve.operator.k8s.names import Key

HEARTBEAT = "MacroserveWatchdog"
"""An alert that always fires; while it arrives, other alerts would as well."""

STALE_S = 120.0
"""Alertmanager repeats firing alerts every minute; one missing twice is over."""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert, as Alertmanager reports it."""

    name: str
    about: Key | None
    """Its MacroInstance; None if it concerns no particular one."""
    firing: bool
    fingerprint: str = ""
    """Distinguishes alerts of the same name."""


class FiringAlerts:
    """Currently firing alerts. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heartbeat_at: float | None = None
        self._firing: dict[Key, dict[tuple[str, str], float]] = {}

    def note(self, alert: Alert) -> bool:
        """Record an alert; return whether it is new."""
        if alert.name == HEARTBEAT:
            self._heartbeat_at = self._clock() if alert.firing else None
            return False
        if alert.about is None:
            return False
        before = self.firing(alert.about)
        noted = self._firing.setdefault(alert.about, {})
        if alert.firing:
            noted[alert.name, alert.fingerprint] = self._clock()
        else:
            noted.pop((alert.name, alert.fingerprint), None)
        return self.firing(alert.about) != before

    @property
    def is_silent(self) -> bool:
        """Return whether the heartbeat is missing, so that alerts may be lost."""
        return self._heartbeat_at is None or self._is_over(self._heartbeat_at)

    def firing(self, about: Key) -> frozenset[str]:
        """Return the names of the firing alerts of a MacroInstance."""
        noted = self._firing.get(about, {})
        for over in [which for which, heard_at in noted.items() if self._is_over(heard_at)]:
            del noted[over]
        return frozenset(name for name, _ in noted)

    def forget(self, about: Key) -> None:
        self._firing.pop(about, None)

    def _is_over(self, heard_at: float) -> bool:
        return self._clock() - heard_at > STALE_S
