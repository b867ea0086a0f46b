"""How long responses get, learned from those that ended.

EconoServe (section 3.2) asks a fine-tuned model, which with padding is right for 70 to 78 % of the
requests. Who asks for much alike gets answers alike: on a public trace of chats, the responses to
the prompts closest in length tell as much (75 %), and the lengths of all responses much less.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from math import exp

from macroserve.core.request import Request

WINDOW = 2048
NUM_NEIGHBOURS = 32
QUANTILE = 0.5
SURE_QUANTILE = 0.1
UNSEEN_TOKENS = 256
"""Guess at what is left where no observed length tells."""


class LengthPredictor:
    """A quantile of the response lengths, all instances' tokens counted, to the ``NUM_NEIGHBOURS``
    prompts closest in length among the last ``WINDOW``."""

    __slots__ = ("_by_prompt", "_lengths", "_num_observed", "_recent", "_responses")

    def __init__(self) -> None:
        self._recent: deque[tuple[tuple[int, int], int]] = deque()
        self._by_prompt: list[tuple[int, int]] = []
        """Prompt tokens, ordinal."""
        self._responses: list[int] = []
        """Tokens of the response to each of these prompts."""
        self._lengths: list[int] = []
        """Of all responses, in order."""
        self._num_observed = 0

    def observe(self, request: Request, num_emitted: int) -> None:
        """A response ended with ``num_emitted`` tokens from here."""
        length = request.num_streamed_tokens + num_emitted
        if len(self._recent) == WINDOW:
            prompt, oldest = self._recent.popleft()
            index = bisect_left(self._by_prompt, prompt)
            del self._by_prompt[index], self._responses[index]
            del self._lengths[bisect_left(self._lengths, oldest)]
        prompt = (_first_prompt(request), self._num_observed)
        self._num_observed += 1
        self._recent.append((prompt, length))
        index = bisect_left(self._by_prompt, prompt)
        self._by_prompt.insert(index, prompt)
        self._responses.insert(index, length)
        insort(self._lengths, length)

    def predict(self, request: Request, num_emitted: int = 0) -> int:
        """Tokens of its response from here, given that ``num_emitted`` of them are out.

        What the request itself says counts until it turns out wrong. Then only responses that got
        longer than this one tell about it: the neighbours', or all if none of theirs did. The
        answer exceeds ``num_emitted`` unless that is at the request's limit, which it never
        exceeds.
        """
        if request.expected_tokens is not None and request.expected_tokens > num_emitted:
            return min(request.expected_tokens, request.max_new_tokens)
        before = request.num_streamed_tokens
        out = before + num_emitted
        lengths = sorted(self._neighbours(request))
        if not lengths or lengths[-1] <= out:
            lengths = self._lengths
        num_shorter = bisect_right(lengths, out)
        rank = num_shorter + int(QUANTILE * (len(lengths) - num_shorter))
        unseen = num_emitted + UNSEEN_TOKENS
        expected = lengths[rank] - before if rank < len(lengths) else unseen
        return min(expected, request.max_new_tokens)

    def at_least(self, request: Request) -> int:
        """Tokens from here that its response gets for nearly sure: all but ``SURE_QUANTILE`` of the
        neighbours' got that many. 0 where so few are known that none can be left out.
        """
        lengths = sorted(self._neighbours(request))
        num_shorter = int(SURE_QUANTILE * (len(lengths) + 1))
        if not num_shorter:
            return 0
        left = lengths[num_shorter - 1] - request.num_streamed_tokens
        return max(0, min(left, request.max_new_tokens))

    def _neighbours(self, request: Request) -> list[int]:
        """The responses to as many shorter prompts as to longer ones; of equal ones the latest."""
        middle = bisect_left(self._by_prompt, (_first_prompt(request), self._num_observed))
        start = min(middle - NUM_NEIGHBOURS // 2, len(self._by_prompt) - NUM_NEIGHBOURS)
        start = max(0, start)
        return self._responses[start : start + NUM_NEIGHBOURS]


def _first_prompt(request: Request) -> int:
    """Without what an earlier instance streamed."""
    return request.num_prompt_tokens - request.num_streamed_tokens


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
