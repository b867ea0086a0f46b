"""Capacity estimates, delayed as in the operator, where simulations take time."""

from collections.abc import Callable
from dataclasses import dataclass

from macroserve.core.scaling.autoscale import CapacityEstimate

TAKES_S = 3.0
"""Duration of the operator's simulation of a load, seconds; see ``capacity.need``."""

EVERY_S = 15.0
"""Time from an estimate to the start of the next, seconds, as in the operator while its simulations
take less than a quarter of it."""


@dataclass(frozen=True, slots=True)
class _Estimate:
    found: CapacityEstimate
    known_from_s: float


class Estimates:
    """Successive estimates, each valid until the next one is known."""

    def __init__(self) -> None:
        self._present: CapacityEstimate | None = None
        self._coming: _Estimate | None = None
        self._next_s = 0.0

    def latest(
        self, estimate: Callable[[], CapacityEstimate], now: float
    ) -> CapacityEstimate | None:
        """Return the last known estimate, if any, and start another when due.

        estimate: returns an estimate of the present load.
        """
        if self._coming and self._coming.known_from_s <= now:
            self._present, self._next_s = self._coming.found, now + EVERY_S
            self._coming = None
        if self._coming is None and now >= self._next_s:
            self._coming = _Estimate(estimate(), now + TAKES_S)
        return self._present

    def forget(self) -> None:
        """Drop the last estimate and a started one, which assume another number of instances."""
        self._present = self._coming = None
        self._next_s = 0.0
