"""Timeline of an autoscaled fleet: its instances over time, and every change of target."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from macroserve.core.scaling.autoscale import TargetChange, is_rebound


@dataclass(frozen=True, slots=True)
class Moment:
    """Fleet size from a moment to the next one."""

    at_s: float
    wanted: int
    """Target number of instances."""
    ready: int
    """Instances that take requests."""
    existing: int
    """Instances that start, serve or drain."""


@dataclass(frozen=True, slots=True)
class ExplainedChange:
    change: TargetChange
    reason: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """History of a fleet up to the last request's arrival."""

    end_s: float
    """Time of the last request's arrival, seconds from the start."""
    moments: tuple[Moment, ...]
    changes: tuple[ExplainedChange, ...]
    num_failed: int
    """Failed starts."""

    @property
    def mean_existing(self) -> float:
        """Return the mean number of instances that start, serve or drain."""
        return self._mean([each.existing for each in self.moments])

    @property
    def mean_ready(self) -> float:
        """Return the mean number of instances that take requests."""
        return self._mean([each.ready for each in self.moments])

    @property
    def most_existing(self) -> int:
        """Return the maximum number of instances that start, serve or drain."""
        return max(each.existing for each in self.moments)

    @property
    def num_ups(self) -> int:
        return sum(each.change.after > each.change.before for each in self.changes)

    @property
    def num_downs(self) -> int:
        return len(self.changes) - self.num_ups

    @property
    def num_flaps(self) -> int:
        """Return how often the target was raised soon after it was lowered; see ``REBOUND_S``."""
        return sum(
            is_rebound(before.change, after.change) for before, after in pairwise(self.changes)
        )

    def _mean(self, numbers: Sequence[int]) -> float:
        """Return the time-weighted mean of one number per moment."""
        ends_s = [each.at_s for each in self.moments[1:]]
        total_s = 0.0
        for moment, until_s, number in zip(
            self.moments, [*ends_s, self.end_s], numbers, strict=True
        ):
            total_s += number * max(0.0, min(until_s, self.end_s) - moment.at_s)
        return total_s / self.end_s if self.end_s else float(numbers[0])
