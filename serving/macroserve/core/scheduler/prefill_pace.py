"""How fast an instance works off its queue, as measured."""

from math import exp

WINDOW_S = 30.0
"""The pace is an average over about so long, the latest counting most."""
PRIOR_S = 2.0
"""The prediction counts as much as so long of measurements."""


class PrefillPace:
    """Time per prompt token while requests wait, whatever it goes to: prefills, decodes between
    them, or the wait for memory or a seat."""

    def __init__(self) -> None:
        self._num_tokens = 0.0
        self._elapsed_s = 0.0

    def observe(self, num_tokens: int, elapsed_s: float) -> None:
        """An iteration with so many prompt tokens in it has ended. Some requests waited."""
        kept = exp(-elapsed_s / WINDOW_S)
        self._num_tokens = kept * self._num_tokens + num_tokens
        self._elapsed_s = kept * self._elapsed_s + elapsed_s

    def s_per_token(self, predicted_s_per_token: float) -> float:
        """predicted_s_per_token: of prefills alone, which is all that is known at first."""
        num_prior_tokens = PRIOR_S / predicted_s_per_token
        return (self._elapsed_s + PRIOR_S) / (self._num_tokens + num_prior_tokens)
