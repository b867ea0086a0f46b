"""How long responses get, learned from those that ended.

EconoServe (section 3.2) asks a fine-tuned model; the lengths just seen cost nothing, and knowing
how much is out already says most of the rest.
"""

from bisect import bisect_right, insort
from collections import deque

from macroserve.core.request import Request

WINDOW = 512
QUANTILE = 0.5
UNSEEN_TOKENS = 256
"""Guess at what is left where no observed length tells."""


class LengthPredictor:
    """A quantile of the last ``WINDOW`` response lengths, all instances' tokens counted."""

    __slots__ = ("_recent", "_sorted")

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def observe(self, request: Request, num_emitted: int) -> None:
        """A response ended with ``num_emitted`` tokens from here."""
        length = request.num_streamed_tokens + num_emitted
        if len(self._recent) == WINDOW:
            del self._sorted[bisect_right(self._sorted, self._recent.popleft()) - 1]
        self._recent.append(length)
        insort(self._sorted, length)

    def predict(self, request: Request, num_emitted: int = 0) -> int:
        """Tokens of its response from here, given that ``num_emitted`` of them are out.

        Only responses that got longer than this one tell about it. The answer exceeds
        ``num_emitted`` unless that is at the request's limit, which it never exceeds.
        """
        before = request.num_streamed_tokens
        first = bisect_right(self._sorted, before + num_emitted)
        num_longer = len(self._sorted) - first
        if num_longer:
            expected = self._sorted[first + int(QUANTILE * num_longer)] - before
        else:
            expected = num_emitted + UNSEEN_TOKENS
        return min(expected, request.max_new_tokens)
