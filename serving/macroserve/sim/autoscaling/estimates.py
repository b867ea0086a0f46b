"""Capacity estimates come some time after the load that they are made of, as in the operator."""

from collections.abc import Callable
from dataclasses import dataclass

from macroserve.core.scaling.autoscale import CapacityEstimate

TAKES_S = 3.0
"""Time that the operator takes to simulate a load, seconds; see ``capacity.need``."""

EVERY_S = 15.0
"""Time from an estimate to the beginning of the next, seconds; the operator's own, as long as its
simulations take less than a quarter of it."""


@dataclass(frozen=True, slots=True)
class _Estimate:
    found: CapacityEstimate
    known_from_s: float


class Estimates:
    """The estimates are made one after the other; the last one holds until the next is known."""

    def __init__(self) -> None:
        self._present: CapacityEstimate | None = None
        self._coming: _Estimate | None = None
        self._next_s = 0.0

    def latest(
        self, estimate: Callable[[], CapacityEstimate], now: float
    ) -> CapacityEstimate | None:
        """Return the last estimate, None if there is none yet. Begin another one when it is due.

        estimate: makes an estimate of the present load.
        """
        if self._coming and self._coming.known_from_s <= now:
            self._present, self._next_s = self._coming.found, now + EVERY_S
            self._coming = None
        if self._coming is None and now >= self._next_s:
            self._coming = _Estimate(estimate(), now + TAKES_S)
        return self._present

    def forget(self) -> None:
        """Drop the last estimate, and one that is being made: they are of other instances."""
        self._present = self._coming = None
        self._next_s = 0.0
