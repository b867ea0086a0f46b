"""A generation request has latency targets, and every policy reads both."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DEFAULT_CLASS = "default"
"""Name of the SLO class of requests that belong to no other."""

SLOW_PER_CENT = 1
"""Gaps between tokens, per hundred, that may be longer than the target."""


@dataclass(frozen=True, slots=True)
class Slo:
    """A request has latency targets."""

    ttft_s: float
    """Time to first token, seconds."""
    tpot_s: float
    """Mean time per output token after the first, seconds."""
    tbt_s: float | None = None
    """Time between two tokens, seconds, that 99 % of the gaps in every response keep; None if only
    their mean counts."""

    def __post_init__(self) -> None:
        has_tbt = self.tbt_s is None or self.tbt_s > 0
        if not (self.ttft_s > 0 and self.tpot_s > 0 and has_tbt):
            raise ValueError(f"SLO targets must be positive, got {self}")

    @property
    def patience_s(self) -> float:
        """Return the longest wait for a token after the first that is within the targets: the
        target for each gap, or the one for their mean without it."""
        return self.tpot_s if self.tbt_s is None else self.tbt_s

    def is_met(self, ttft_s: float, after_s: float, num_after: int, num_slow: int = 0) -> bool:
        """Return whether a response meets all targets, as seen by its reader.

        after_s: time after the first token, seconds.
        num_after: tokens after the first one.
        num_slow: slow gaps before those tokens.
        """
        in_pace = after_s <= num_after * self.tpot_s
        return ttft_s <= self.ttft_s and in_pace and self.is_steady(num_slow, num_after)

    def is_slow(self, gap_s: float) -> bool:
        """Return whether a gap between two tokens is longer than all but a few may be."""
        return self.tbt_s is not None and gap_s > self.tbt_s

    def num_slow(self, gaps_s: Iterable[float]) -> int:
        """Return the number of slow gaps."""
        return 0 if self.tbt_s is None else sum(gap_s > self.tbt_s for gap_s in gaps_s)

    @staticmethod
    def is_steady(num_slow: int, num_gaps: int) -> bool:
        """Return whether the 99th percentile of the gaps (nearest rank) is within its target."""
        return 100 * num_slow <= SLOW_PER_CENT * num_gaps

    @staticmethod
    def steady_s(gaps_s: Sequence[float]) -> float:
        """Return the 99th percentile of the gaps (nearest rank), the least target that they keep;
        0.0 without any."""
        num_slow = SLOW_PER_CENT * len(gaps_s) // 100
        return sorted(gaps_s)[-1 - num_slow] if gaps_s else 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """A client asks for one response."""

    request_id: str
    arrival_s: float
    """Time of acceptance, seconds on the holder's clock. Clocks are not shared between machines:
    messages carry the age, and each receiver subtracts it from its own ``now``."""
    num_prompt_tokens: int
    """Tokens to prefill, including those that an earlier instance has streamed."""
    max_new_tokens: int
    slo: Slo
    num_streamed_tokens: int = 0
    """How many of them an earlier instance has streamed; then the first token is out, and the TTFT
    target no longer applies."""
    expected_tokens: int | None = None
    """Expected tokens of the response from here, by knowledge of the prompt; None if only other
    responses' lengths tell."""
    probe: bool = False
    """True for a request of no client, with which an instance warms up or a part tests another;
    neither its end nor its length counts."""
    route_id: str = ""
    """Id under which the cell scheduler counts this attempt; empty where that is ``request_id``."""
    adapter: str | None = None
    """Name of the LoRA adapter that computes it; None for the model alone."""
    slo_class: str = DEFAULT_CLASS
    """Name of its SLO class, by which what has ended is counted."""

    def __post_init__(self) -> None:
        if self.num_prompt_tokens < 1 or self.max_new_tokens < 1:
            raise ValueError(f"a request has at least one token in and one out, got {self}")
        if not 0 <= self.num_streamed_tokens < self.num_prompt_tokens:
            raise ValueError(f"streamed tokens are part of the prompt, got {self}")

    @property
    def deadline_s(self) -> float:
        """Return when the next visible token is due, on the holder's clock."""
        return self.arrival_s + self.slo.ttft_s
