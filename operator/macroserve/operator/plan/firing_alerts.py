"""Keep the alerts that fire for each MacroInstance, as Alertmanager last reported them."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from macroserve.operator.k8s.names import Key

HEARTBEAT = "MacroserveWatchdog"
"""Fires always: as long as it comes, other alerts would."""

STALE_S = 120.0
"""Alertmanager repeats what still fires every minute; what it did not repeat twice is over."""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert, as Alertmanager reports it.

    Attributes:
        about: MacroInstance of the alert; None if it concerns no particular one.
        fingerprint: Tells alerts of one name apart.
    """

    name: str
    about: Key | None
    firing: bool
    fingerprint: str = ""


class FiringAlerts:
    """The alerts that fire now. `clock` returns monotonic seconds."""

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
        """Return the names of the alerts that fire for a MacroInstance."""
        noted = self._firing.get(about, {})
        for over in [which for which, heard_at in noted.items() if self._is_over(heard_at)]:
            del noted[over]
        return frozenset(name for name, _ in noted)

    def forget(self, about: Key) -> None:
        self._firing.pop(about, None)

    def _is_over(self, heard_at: float) -> bool:
        return self._clock() - heard_at > STALE_S
