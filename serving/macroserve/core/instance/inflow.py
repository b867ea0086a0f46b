"""How fast requests come, as their tokens."""

from math import exp

WINDOW_S = 30.0
"""The rate is an average over about so long, the latest counting most."""


class Inflow:
    def __init__(self) -> None:
        self._num_tokens = 0.0
        self._as_of_s = 0.0

    def add(self, num_tokens: int, now: float) -> None:
        self._num_tokens = self._left(now) + num_tokens
        self._as_of_s = now

    def tokens_per_s(self, now: float) -> float:
        return self._left(now) / WINDOW_S

    def _left(self, now: float) -> float:
        return self._num_tokens * exp((self._as_of_s - now) / WINDOW_S)
