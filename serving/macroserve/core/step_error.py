"""The step error tells how much longer than predicted batches take."""

from bisect import bisect_left, insort
from collections import deque
from math import ceil, isfinite

GROUP_BATCHES = 16
"""Batches that are compared together. TPOT is a mean: in it, errors that differ from batch to batch
cancel out, and a stall or a slow stretch does not. With single batches, stalls of one in fifty are
not seen; with 32, slow stretches are seen late."""

NUM_GROUPS = 64
"""Latest groups that are remembered: some thousand batches, about a minute."""

FEWEST_GROUPS = 10
"""Groups below which no error is assumed, so that one stall does not count."""

QUANTILE = 0.9
"""Share of the groups that take no longer than the factor says."""

MAX_FACTOR = 2.0
"""Largest factor; beyond it prompts would wait for a pace that the machine does not keep anyhow."""


class StepError:
    """The step error is a quantile of the time that batches took, divided by their predicted time.

    Attributes:
        factor: that quantile, from 1 (the prediction holds, or is too long) to ``MAX_FACTOR``.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._num_batches = 0
        self._predicted_s = 0.0
        self._elapsed_s = 0.0
        self._ratios: deque[float] = deque()
        self._sorted: list[float] = []

    def observe(self, predicted_s: float, elapsed_s: float) -> None:
        """Add a batch; times that are not positive and finite are ignored."""
        if not (isfinite(predicted_s) and isfinite(elapsed_s) and min(predicted_s, elapsed_s) > 0):
            return
        self._num_batches += 1
        self._predicted_s += predicted_s
        self._elapsed_s += elapsed_s
        if self._num_batches == GROUP_BATCHES:
            self._add(self._elapsed_s / self._predicted_s)
            self._num_batches, self._predicted_s, self._elapsed_s = 0, 0.0, 0.0

    def _add(self, ratio: float) -> None:
        if len(self._ratios) == NUM_GROUPS:
            del self._sorted[bisect_left(self._sorted, self._ratios.popleft())]
        self._ratios.append(ratio)
        insort(self._sorted, ratio)
        num = len(self._sorted)
        if num >= FEWEST_GROUPS:
            self.factor = min(max(1.0, self._sorted[ceil(QUANTILE * num) - 1]), MAX_FACTOR)
