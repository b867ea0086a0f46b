"""The prefill pace measures how fast an instance works off its queue."""

from math import exp

WINDOW_S = 30.0
"""Time constant of the exponentially weighted pace, seconds."""
PRIOR_S = 2.0
"""Weight of the prediction, in seconds of measurements."""


class PrefillPace:
    """The pace is the time per prompt token while requests wait.

    It includes whatever the time goes to: prefills, decodes between them, or the wait for memory or
    a seat.
    """

    def __init__(self) -> None:
        self._num_tokens = 0.0
        self._elapsed_s = 0.0

    def observe(self, num_tokens: int, elapsed_s: float) -> None:
        """Add an iteration of ``elapsed_s`` with ``num_tokens`` prompt tokens, during which
        requests waited."""
        kept = exp(-elapsed_s / WINDOW_S)
        self._num_tokens = kept * self._num_tokens + num_tokens
        self._elapsed_s = kept * self._elapsed_s + elapsed_s

    def s_per_token(self, predicted_s_per_token: float) -> float:
        """Return the pace, seconds per prompt token.

        predicted_s_per_token: time of prefills alone, the only known value at first.
        """
        num_prior_tokens = PRIOR_S / predicted_s_per_token
        return (self._elapsed_s + PRIOR_S) / (self._num_tokens + num_prior_tokens)
