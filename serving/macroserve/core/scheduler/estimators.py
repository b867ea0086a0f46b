"""Estimates from the recent past: response lengths, arrivals and use of an instance's time."""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from itertools import takewhile
from math import exp, inf

from macroserve.core.request import Request

# -- response lengths

WINDOW = 2048
"""Number of latest responses kept."""

NUM_NEIGHBORS = 32
"""Number of prompts closest in length whose responses are compared."""

QUANTILE = 0.5
"""Quantile of the neighbors' lengths used as prediction."""

SURE_QUANTILE = 0.1
"""Quantile of the neighbors' lengths that a response is nearly sure to reach."""

UNSEEN_TOKENS = 256
"""Remaining tokens assumed if all observed responses were shorter."""


class LengthPredictor:
    """Predictor of response lengths from the responses to prompts of similar length.

    A quantile over the ``NUM_NEIGHBORS`` closest of the last ``WINDOW`` prompts; lengths include
    tokens streamed by other instances. EconoServe (section 3.2) uses a fine-tuned model, which with
    padding is right for 70 to 78 % of the requests. On a public trace of chats this predictor does
    as well (75 %), and a quantile over all responses much worse.
    """

    __slots__ = ("_by_prompt", "_lengths", "_num_observed", "_recent", "_responses")

    def __init__(self) -> None:
        self._recent: deque[tuple[tuple[int, int], int]] = deque()
        self._by_prompt: list[tuple[int, int]] = []
        """(prompt tokens, ordinal) of each prompt, sorted."""
        self._responses: list[int] = []
        """Tokens of the responses, in the same order."""
        self._lengths: list[int] = []
        """Tokens of the responses, sorted."""
        self._num_observed = 0

    def observe(self, request: Request, num_emitted: int) -> None:
        """Learn from a response that ended with ``num_emitted`` tokens on this instance."""
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
        """Return the response's tokens on this instance, given that ``num_emitted`` are out.

        The request's own expectation counts until it is exceeded; then longer responses of the
        neighbors, or of all if no neighbor's is longer. The result exceeds ``num_emitted`` up to
        the request's limit.
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
        """Return the tokens on this instance that the response is nearly sure to get: the
        ``SURE_QUANTILE`` of the neighbors' lengths, 0 with too few neighbors."""
        lengths = sorted(self._neighbors(request))
        num_shorter = int(SURE_QUANTILE * (len(lengths) + 1))
        if not num_shorter:
            return 0
        left = lengths[num_shorter - 1] - request.num_streamed_tokens
        return max(0, min(left, request.max_new_tokens))

    def _neighbors(self, request: Request) -> list[int]:
        """Return the lengths of responses to the closest prompts, half shorter and half longer."""
        middle = bisect_left(self._by_prompt, (_first_prompt(request), self._num_observed))
        start = min(middle - NUM_NEIGHBORS // 2, len(self._by_prompt) - NUM_NEIGHBORS)
        start = max(0, start)
        return self._responses[start : start + NUM_NEIGHBORS]


def _first_prompt(request: Request) -> int:
    """Return the prompt tokens without those streamed by an earlier instance."""
    return request.num_prompt_tokens - request.num_streamed_tokens


# -- arrivals

WINDOW_S = 30.0
"""Time constant of exponentially weighted arrivals, paces and step times, seconds."""

TARGETS_S = 60.0
"""How long the TTFT target of an arrival counts, seconds: a class with a request per minute is
expected to send another."""


class Inflow:
    """Recent rate of arriving prompt and response tokens, and the tightest recent TTFT target."""

    def __init__(self) -> None:
        self._token_seconds = 0.0
        self._as_of_s = 0.0
        self._targets_s: deque[tuple[float, float]] = deque()
        """TTFT target and arrival of each request, until one with as tight a target arrives."""

    def add(self, num_tokens: int, ttft_s: float, now: float) -> None:
        self._token_seconds = self._left(now) + num_tokens * ttft_s
        self._as_of_s = now
        while self._targets_s and self._targets_s[-1][0] >= ttft_s:
            self._targets_s.pop()
        while self._targets_s and self._targets_s[0][1] < now - TARGETS_S:
            self._targets_s.popleft()
        self._targets_s.append((ttft_s, now))

    def min_ttft_s(self, now: float) -> float:
        """Return the tightest TTFT target within ``TARGETS_S``, infinite without arrivals."""
        return next((ttft_s for ttft_s, at_s in self._targets_s if at_s >= now - TARGETS_S), inf)

    def coming_tokens(self, now: float) -> float:
        """Return the tokens expected to arrive within one TTFT target, by each request's own."""
        return self._left(now) / WINDOW_S

    def _left(self, now: float) -> float:
        return self._token_seconds * exp((self._as_of_s - now) / WINDOW_S)


class PromptRate:
    """Rate at which prompt tokens have arrived within the last ``TARGETS_S``."""

    def __init__(self) -> None:
        self._prompts: deque[tuple[float, int]] = deque()
        """Arrival and tokens of each prompt."""

    def add(self, num_tokens: int, now: float) -> None:
        while self._prompts and self._prompts[0][0] < now - TARGETS_S:
            self._prompts.popleft()
        self._prompts.append((now, num_tokens))

    def tokens_per_s(self, window_s: float, now: float) -> float:
        """Return the mean rate over a window, at most ``TARGETS_S``."""
        window_s = min(window_s, TARGETS_S)
        recent = takewhile(lambda prompt: prompt[0] >= now - window_s, reversed(self._prompts))
        return sum([num_tokens for _, num_tokens in recent]) / window_s


# -- time

PRIOR_S = 2.0
"""Weight of the predicted pace of prefills, in seconds of measurements."""

RECENT_S = 5.0
"""Time constant of the decodes' pace and the prefills' share, seconds."""

SHARE_FLOOR = 0.1
"""Minimum share of time assumed for prefills, to bound the cost of a prompt."""


class PrefillPace:
    """Time per prompt token while requests wait, including the decodes between prefills and waits
    for memory or a seat."""

    def __init__(self) -> None:
        self._num_tokens = 0.0
        self._elapsed_s = 0.0

    def observe(self, num_tokens: int, elapsed_s: float) -> None:
        """Add an iteration with ``num_tokens`` prompt tokens during which requests waited."""
        kept = exp(-elapsed_s / WINDOW_S)
        self._num_tokens = kept * self._num_tokens + num_tokens
        self._elapsed_s = kept * self._elapsed_s + elapsed_s

    def s_per_token(self, predicted_s_per_token: float) -> float:
        """Return the pace, starting from the predicted time per token of prefills alone."""
        num_prior_tokens = PRIOR_S / predicted_s_per_token
        return (self._elapsed_s + PRIOR_S) / (self._num_tokens + num_prior_tokens)


class StepTimeMeans:
    """Measured and predicted time of a step, as exponentially weighted means."""

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
        """Return the measured and the predicted mean, seconds; None before the first step."""
        num = self._num_steps
        return (self._elapsed_s / num, self._predicted_s / num) if num else (None, None)


class Averages:
    """Exponentially weighted means over the last seconds."""

    def __init__(self) -> None:
        self.pace_s = 0.0
        """Time of a step of the decodes, seconds."""
        self.prefill_share = 0.5
        """Share of batch time for prefills while prompts waited for time, not memory or a seat."""
        self.steps = StepTimeMeans()

    def observe_decodes(self, step_s: float, num_steps: int) -> None:
        older = (RECENT_S / (step_s + RECENT_S)) ** num_steps
        self.pace_s = older * self.pace_s + (1 - older) * step_s

    def observe_share(self, decode_s: float, batch_s: float) -> None:
        """Add a batch of ``batch_s``, of which its decodes alone would take ``decode_s``."""
        share = max(0.0, 1 - decode_s / batch_s)
        weight = batch_s / (batch_s + RECENT_S)
        self.prefill_share += weight * (max(share, SHARE_FLOOR) - self.prefill_share)
