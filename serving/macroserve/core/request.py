"""A generation request and its targets, as every policy sees them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SLOW_PER_CENT = 1
"""Gaps between tokens that may be longer than the target, of a hundred."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency targets of one request.

    ttft_s: time to first token, seconds.
    tpot_s: mean time per output token after the first, seconds.
    tbt_s: time between two tokens, seconds, that 99 % of those gaps keep in every response; None
        where only their mean counts.
    """

    ttft_s: float
    tpot_s: float
    tbt_s: float | None = None

    def __post_init__(self) -> None:
        has_tbt = self.tbt_s is None or self.tbt_s > 0
        if not (self.ttft_s > 0 and self.tpot_s > 0 and has_tbt):
            raise ValueError(f"SLO targets must be positive, got {self}")

    def is_met(self, ttft_s: float, after_s: float, num_after: int, num_slow: int = 0) -> bool:
        """Whether a response is within all targets, as its reader saw it.

        after_s, num_after: time and tokens after the first one. num_slow: those of the gaps before
        them that are slow.
        """
        in_pace = after_s <= num_after * self.tpot_s
        return ttft_s <= self.ttft_s and in_pace and self.is_steady(num_slow, num_after)

    def is_slow(self, gap_s: float) -> bool:
        """Whether so much time between two tokens is more than all but a few may take."""
        return self.tbt_s is not None and gap_s > self.tbt_s

    def num_slow(self, gaps_s: Iterable[float]) -> int:
        """How many of them are slow."""
        return 0 if self.tbt_s is None else sum(gap_s > self.tbt_s for gap_s in gaps_s)

    @staticmethod
    def is_steady(num_slow: int, num_gaps: int) -> bool:
        """Whether the 99th percentile of the gaps (nearest rank) is within its target."""
        return 100 * num_slow <= SLOW_PER_CENT * num_gaps

    @staticmethod
    def steady_s(gaps_s: Sequence[float]) -> float:
        """The 99th percentile of the gaps (nearest rank): the least target that they keep; 0.0
        without any."""
        num_slow = SLOW_PER_CENT * len(gaps_s) // 100
        return sorted(gaps_s)[-1 - num_slow] if gaps_s else 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """One generation request.

    arrival_s: when the request was accepted, on the holder's clock. Clocks are not shared between
        machines: on the wire travels the age, and each receiver subtracts it from its own ``now``.
    num_prompt_tokens: tokens to prefill. For a request that another instance had begun, this
        counts the tokens that it had streamed already.
    num_streamed_tokens: how many of those were streamed by an earlier instance; its first token
        is out, so the TTFT target no longer applies.
    expected_tokens: what somebody who knows the prompt expects of the response from here; None
        where only the lengths of others tell.
    probe: made by the instance itself, to see whether it works; no count of requests has it.
    """

    request_id: str
    arrival_s: float
    num_prompt_tokens: int
    max_new_tokens: int
    slo: Slo
    num_streamed_tokens: int = 0
    expected_tokens: int | None = None
    probe: bool = False

    def __post_init__(self) -> None:
        if self.num_prompt_tokens < 1 or self.max_new_tokens < 1:
            raise ValueError(f"a request has at least one token in and one out, got {self}")
        if not 0 <= self.num_streamed_tokens < self.num_prompt_tokens:
            raise ValueError(f"streamed tokens are part of the prompt, got {self}")

    @property
    def deadline_s(self) -> float:
        """When its next visible token is due, on the holder's clock."""
        return self.arrival_s + self.slo.ttft_s
