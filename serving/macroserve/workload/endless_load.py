"""Endless loads have a rate, random gaps between arrivals, and maybe conversations."""

from dataclasses import dataclass, field, replace
from math import inf
from typing import Self

from macroserve.workload.multi_turn import MultiTurn


@dataclass(frozen=True, slots=True)
class EndlessLoad:
    """An endless load has random gaps between its arrivals.

    Raises ValueError for an arrival process that cannot be.
    """

    rate: float
    """Arrivals per second."""
    cv: float
    """Coefficient of variation of the gaps; see ``gamma_gaps``."""
    multi_turn: MultiTurn | None = field(default=None, kw_only=True)
    """Conversations that the arrivals begin."""

    def __post_init__(self) -> None:
        if not 0 < self.rate < inf:
            raise ValueError(f"the rate must be positive, got {self.rate}")
        if self.cv != 0 and not 0.001 <= self.cv <= 1000:
            raise ValueError(f"the CV of the arrivals must be 0, or 0.001 to 1000, got {self.cv}")

    @property
    def intensity(self) -> float:
        return self.rate

    @property
    def unit(self) -> str:
        return "conversations/s" if self.multi_turn else "req/s"

    def at(self, intensity: float) -> Self:
        return replace(self, rate=intensity)

    def max_intensity(self, duration_s: float) -> float:
        return inf
