"""A generation request and its latency targets, the common input of all policies."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DEFAULT_CLASS = "default"
"""Name of the SLO class of requests that belong to no other."""

SLOW_PER_CENT = 1
"""Percentage of gaps between tokens that may exceed the target."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency targets of a request."""

    ttft_s: float
    """Time to first token, seconds."""
    tpot_s: float
    """Mean time per output token after the first, seconds."""
    tbt_s: float | None = None
    """Time between tokens, seconds, for 99 % of the gaps in a response; None if only their mean
    counts."""

    def __post_init__(self) -> None:
        has_tbt = self.tbt_s is None or self.tbt_s > 0
        if not (self.ttft_s > 0 and self.tpot_s > 0 and has_tbt):
            raise ValueError(f"SLO targets must be positive, got {self}")

    @property
    def patience_s(self) -> float:
        """Return the longest gap within the targets: TBT, or TPOT without a TBT target."""
        return self.tpot_s if self.tbt_s is None else self.tbt_s

    def is_met(self, ttft_s: float, after_s: float, num_after: int, num_slow: int = 0) -> bool:
        """Return whether a response meets all targets, as its reader sees it.

        after_s, num_after: seconds and tokens after the first token.
        num_slow: slow gaps before those tokens.
        """
        in_pace = after_s <= num_after * self.tpot_s
        return ttft_s <= self.ttft_s and in_pace and self.is_steady(num_slow, num_after)

    def is_slow(self, gap_s: float) -> bool:
        """Return whether a gap between two tokens exceeds the TBT target."""
        return self.tbt_s is not None and gap_s > self.tbt_s

    def num_slow(self, gaps_s: Iterable[float]) -> int:
        return 0 if self.tbt_s is None else sum(gap_s > self.tbt_s for gap_s in gaps_s)

    @staticmethod
    def is_steady(num_slow: int, num_gaps: int) -> bool:
        """Return whether the 99th percentile of the gaps (nearest rank) is within its target."""
        return 100 * num_slow <= SLOW_PER_CENT * num_gaps

    @staticmethod
    def steady_s(gaps_s: Sequence[float]) -> float:
        """Return the 99th percentile of the gaps (nearest rank); 0.0 without any."""
        num_slow = SLOW_PER_CENT * len(gaps_s) // 100
        return sorted(gaps_s)[-1 - num_slow] if gaps_s else 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request for one response."""

    request_id: str
    arrival_s: float
    """Time of acceptance, seconds on the local clock. Messages between machines carry the age,
    which each receiver subtracts from its own ``now``."""
    num_prompt_tokens: int
    """Tokens to prefill, including those that an earlier instance has streamed."""
    max_new_tokens: int
    slo: Slo
    num_streamed_tokens: int = 0
    """Prompt tokens that an earlier instance has streamed; if any, TTFT no longer applies."""
    expected_tokens: int | None = None
    """Remaining tokens of the response, as predicted from the prompt; None if they are not."""
    probe: bool = False
    """Whether this is a warm-up or health check, which no statistics include."""
    route_id: str = ""
    """Id under which the cell scheduler counts this attempt; empty where that is ``request_id``."""
    adapter: str | None = None
    """Name of the LoRA adapter; None for the base model."""
    slo_class: str = DEFAULT_CLASS

    def __post_init__(self) -> None:
        if self.num_prompt_tokens < 1 or self.max_new_tokens < 1:
            raise ValueError(f"a request has at least one token in and one out, got {self}")
        if not 0 <= self.num_streamed_tokens < self.num_prompt_tokens:
            raise ValueError(f"streamed tokens are part of the prompt, got {self}")

    @property
    def deadline_s(self) -> float:
        """Return when the next visible token is due, on the local clock."""
        return self.arrival_s + self.slo.ttft_s
