"""Response lengths are predicted from responses that ended.

EconoServe (section 3.2) asks a fine-tuned model, which with padding is right for 70 to 78 % of the
requests. Requests with similar prompt lengths get responses of similar length: on a public trace of
chats, the responses to the prompts closest in length predict as well (75 %), and the lengths of all
responses predict much less.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from math import exp, inf

from macroserve.core.request import Request

WINDOW = 2048
"""Number of latest responses that are remembered."""
NUM_NEIGHBORS = 32
"""Number of prompts closest in length whose responses are compared."""
QUANTILE = 0.5
"""Quantile of the neighbors' lengths that is predicted."""
SURE_QUANTILE = 0.1
"""Quantile of the neighbors' lengths that a response is nearly sure to reach."""
UNSEEN_TOKENS = 256
"""Remaining tokens assumed if no observed length is longer."""


class LengthPredictor:
    """The predictor returns a quantile of the response lengths to the prompts closest in length.

    It compares ``NUM_NEIGHBORS`` prompts among the last ``WINDOW``; lengths count the tokens of
    all instances.
    """

    __slots__ = ("_by_prompt", "_lengths", "_num_observed", "_recent", "_responses")

    def __init__(self) -> None:
        self._recent: deque[tuple[tuple[int, int], int]] = deque()
        self._by_prompt: list[tuple[int, int]] = []
        """(prompt tokens, ordinal) of each remembered prompt, sorted."""
        self._responses: list[int] = []
        """Tokens of the response to each of these prompts, in the same order."""
        self._lengths: list[int] = []
        """Tokens of all remembered responses, sorted."""
        self._num_observed = 0

    def observe(self, request: Request, num_emitted: int) -> None:
        """Learn from a response that ended with ``num_emitted`` tokens from here."""
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
        """Return the response's tokens from here, given that ``num_emitted`` of them are out.

        The request's own expectation counts until it proves wrong. Then only longer responses than
        this one predict it: the neighbors', or all if no neighbor's is longer. The result exceeds
        ``num_emitted`` unless that is the request's limit, which it never exceeds.
        """
        if request.expected_tokens is not None and request.expected_tokens > num_emitted:
            return min(request.expected_tokens, request.max_new_tokens)
        before = request.num_streamed_tokens
        out = before + num_emitted
        lengths = sorted(self._neighbors(request))
        if not lengths or lengths[-1] <= out:
            lengths = self._lengths
        num_shorter = bisect_right(lengths, out)
        rank = num_shorter + int(QUANTILE * (len(lengths) - num_shorter))
        unseen = num_emitted + UNSEEN_TOKENS
        expected = lengths[rank] - before if rank < len(lengths) else unseen
        return min(expected, request.max_new_tokens)

    def at_least(self, request: Request) -> int:
        """Return the tokens from here that the response is nearly sure to get.

        All but ``SURE_QUANTILE`` of the neighbors' responses got that many. 0 if too few are known
        to leave one out.
        """
        lengths = sorted(self._neighbors(request))
        num_shorter = int(SURE_QUANTILE * (len(lengths) + 1))
        if not num_shorter:
            return 0
        left = lengths[num_shorter - 1] - request.num_streamed_tokens
        return max(0, min(left, request.max_new_tokens))

    def _neighbors(self, request: Request) -> list[int]:
        """Return the responses to as many shorter prompts as longer ones, among equals the
        latest."""
        middle = bisect_left(self._by_prompt, (_first_prompt(request), self._num_observed))
        start = min(middle - NUM_NEIGHBORS // 2, len(self._by_prompt) - NUM_NEIGHBORS)
        start = max(0, start)
        return self._responses[start : start + NUM_NEIGHBORS]


def _first_prompt(request: Request) -> int:
    """Return the prompt tokens without those streamed by an earlier instance."""
    return request.num_prompt_tokens - request.num_streamed_tokens


WINDOW_S = 30.0
"""Time constant of the exponentially weighted rate, seconds."""

TARGETS_S = 60.0
"""Time for which the TTFT target of an arrival counts, seconds: a class that sends a request a
minute is expected to send another."""


class Inflow:
    """The inflow is the recent rate of arriving prompt and response tokens, for as long as the TTFT
    target of their requests, and the tightest of these targets."""

    def __init__(self) -> None:
        self._token_seconds = 0.0
        self._as_of_s = 0.0
        self._targets_s: deque[tuple[float, float]] = deque()
        """TTFT target and arrival of each request that no later one has as tight a target as."""

    def add(self, num_tokens: int, ttft_s: float, now: float) -> None:
        """Add a request that arrives ``now``, no earlier than the ones before."""
        self._token_seconds = self._left(now) + num_tokens * ttft_s
        self._as_of_s = now
        while self._targets_s and self._targets_s[-1][0] >= ttft_s:
            self._targets_s.pop()
        while self._targets_s and self._targets_s[0][1] < now - TARGETS_S:
            self._targets_s.popleft()
        self._targets_s.append((ttft_s, now))

    def min_ttft_s(self, now: float) -> float:
        """Return the tightest TTFT target of the last ``TARGETS_S``, seconds; infinite without
        arrivals."""
        return next((ttft_s for ttft_s, at_s in self._targets_s if at_s >= now - TARGETS_S), inf)

    def coming_tokens(self, now: float) -> float:
        """Return the tokens that are expected to arrive within one TTFT target, each class of
        requests with its own."""
        return self._left(now) / WINDOW_S

    def _left(self, now: float) -> float:
        return self._token_seconds * exp((self._as_of_s - now) / WINDOW_S)
