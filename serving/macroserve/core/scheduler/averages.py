"""The averages describe how an instance spent its recent time."""

from macroserve.core.scheduler.step_times import StepTimes

WINDOW_S = 5.0
"""Time constant of the averages, seconds."""

SHARE_FLOOR = 0.1
"""Least share of time assumed for prefills, so that a prompt's cost has a bound."""


class Averages:
    """The averages are weighted by time, exponentially.

    Attributes:
        pace_s: mean time of a step of the decodes, seconds.
        steps: time of the last steps, beside what was predicted.
        prefill_share: share of its time that a batch had for prefills while prompts waited for
            time, not for memory or a seat.
    """

    def __init__(self) -> None:
        self.pace_s = 0.0
        self.prefill_share = 0.5
        self.steps = StepTimes()

    def observe_decodes(self, step_s: float, num_steps: int) -> None:
        """Add steps of the decodes."""
        older = (WINDOW_S / (step_s + WINDOW_S)) ** num_steps
        self.pace_s = older * self.pace_s + (1 - older) * step_s

    def observe_share(self, decode_s: float, batch_s: float) -> None:
        """Add a batch of ``batch_s``, of which its decodes alone would take ``decode_s``."""
        share = max(0.0, 1 - decode_s / batch_s)
        weight = batch_s / (batch_s + WINDOW_S)
        self.prefill_share += weight * (max(share, SHARE_FLOOR) - self.prefill_share)
