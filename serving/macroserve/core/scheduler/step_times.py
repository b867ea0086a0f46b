"""The step times compare how long an instance's last steps took with what was predicted."""

WINDOW_S = 30.0
"""Time constant of the weights, seconds: hundreds of steps, so that the means hold still between
two looks, and some three reports to a person."""


class StepTimes:
    """The step times are means over the steps, whose weight falls exponentially with the time of
    the steps after them."""

    def __init__(self) -> None:
        self._num_steps = 0.0
        self._elapsed_s = 0.0
        self._predicted_s = 0.0

    def observe(self, predicted_s: float, elapsed_s: float) -> None:
        """Add a step that ran as planned."""
        kept = WINDOW_S / (WINDOW_S + elapsed_s)
        self._num_steps = kept * self._num_steps + 1
        self._elapsed_s = kept * self._elapsed_s + elapsed_s
        self._predicted_s = kept * self._predicted_s + predicted_s

    def means_s(self) -> tuple[float | None, float | None]:
        """Return the mean measured time of a step and the mean predicted one, seconds; None before
        the first step."""
        num = self._num_steps
        return (self._elapsed_s / num, self._predicted_s / num) if num else (None, None)
