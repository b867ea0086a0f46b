"""Start-up of simulated instances, which takes time and may fail."""

from dataclasses import dataclass
from random import Random
from typing import NamedTuple


class StartOutcome(NamedTuple):
    after_s: float
    """Duration of the start, seconds."""
    fails: bool


@dataclass(frozen=True, slots=True)
class StartUp:
    """Distribution of start durations, and the share of starts that fail.

    Raises ValueError for a negative duration and for a share outside [0, 1).
    """

    mean_s: float
    """Mean time from the decision to add an instance until it serves, seconds."""
    variation: float = 0.0
    """Coefficient of variation of the gamma-distributed times; 0: all are equal."""
    failing_share: float = 0.0
    """Share of starts that fail at a random moment and are repeated."""

    def __post_init__(self) -> None:
        if self.mean_s < 0 or self.variation < 0:
            raise ValueError("the time of a start, and its variation, must be 0 or more")
        if not 0 <= self.failing_share < 1:
            raise ValueError(
                f"the share of failing starts is {self.failing_share:g}, must be 0 or more and "
                "less than 1"
            )

    def draw(self, random: Random) -> StartOutcome:
        """Return a random outcome, by the same number of draws whether it fails or not."""
        duration_s = self.mean_s
        if self.variation and self.mean_s:
            shape = 1 / self.variation**2
            duration_s = random.gammavariate(shape, self.mean_s / shape)
        fails, ends_at = random.random() < self.failing_share, random.random()
        return StartOutcome(duration_s * ends_at if fails else duration_s, fails)
