"""A generation request and its targets, as every policy sees them."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency targets of one request.

    ttft_s: time to first token, seconds.
    tpot_s: mean time per output token after the first, seconds.
    tbt_s: time between two tokens, seconds, of 99 % of them; infinite where only their mean counts.
    """

    ttft_s: float
    tpot_s: float
    tbt_s: float = inf

    def __post_init__(self) -> None:
        if not (self.ttft_s > 0 and self.tpot_s > 0 and self.tbt_s > 0):
            raise ValueError(f"SLO targets must be positive, got {self}")


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
    """

    request_id: str
    arrival_s: float
    num_prompt_tokens: int
    max_new_tokens: int
    slo: Slo
    num_streamed_tokens: int = 0
    expected_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.num_prompt_tokens < 1 or self.max_new_tokens < 1:
            raise ValueError(f"a request has at least one token in and one out, got {self}")
        if not 0 <= self.num_streamed_tokens < self.num_prompt_tokens:
            raise ValueError(f"streamed tokens are part of the prompt, got {self}")

    @property
    def deadline_s(self) -> float:
        """When its next visible token is due, on the holder's clock."""
        return self.arrival_s + self.slo.ttft_s
