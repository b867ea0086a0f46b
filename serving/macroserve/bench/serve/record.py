"""The record of one request."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from macroserve.core.request import Slo
from macroserve.core.slo_class import SloClass


class Failure(StrEnum):
    """The reason why a request failed."""

    CONNECT = "connect"
    """The connection could not be made."""
    HTTP = "http"
    """The status was not 200."""
    STREAM = "stream"
    """The endpoint reported an error inside the stream."""
    MALFORMED = "malformed"
    """The response is not an OpenAI stream."""
    TRUNCATED = "truncated"
    """The stream ended before the response did, or held no token."""
    DISCONNECT = "disconnect"
    """The connection broke."""
    TIMEOUT = "timeout"
    """The response was not complete in time."""
    INTERRUPTED = "interrupted"
    """The run was stopped first; the request does not count."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """The record of one request as the client saw it. Times are in seconds.

    scheduled_s: planned time of sending since the start of the run.
    sent_s: time of sending since the start of the run.
    ended_s: time of the end since the start of the run.
    num_prompt_tokens: prompt tokens as the endpoint counts them, as planned where it does not.
    num_planned_tokens: output tokens asked for.
    num_tokens: output tokens received.
    num_cached_tokens: prompt tokens that a prefix cache had; None where the endpoint does not tell
        it.
    detail: the error in words.
    ttft_s: time from sending to the first token, also of failed requests that got one.
    e2e_s: time from sending to the last token, also of failed requests that got one.
    gaps_s: gaps between successive chunks with tokens; single-precision arrays, as there are many.
    turn: number of the turn in its conversation; 0 is the first.
    num_unsent: turns that were not sent, as the conversation ended early with this one.
    slo_class: SLO class, whose targets take the place of those of the run; None for none.
    """

    index: int
    scheduled_s: float
    sent_s: float
    ended_s: float
    num_prompt_tokens: int
    num_planned_tokens: int
    num_tokens: int = 0
    num_cached_tokens: int | None = None
    failure: Failure | None = None
    detail: str = ""
    http_status: int | None = None
    x_request_id: str | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    gaps_s: Sequence[float] = ()
    turn: int = 0
    num_unsent: int = 0
    slo_class: SloClass | None = None

    @property
    def send_lag_s(self) -> float:
        """Return the seconds by which the client sent the request late."""
        return self.sent_s - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """Return the mean time per output token after the first; None without a second."""
        if self.ttft_s is None or self.e2e_s is None or self.num_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.num_tokens - 1)

    @property
    def max_tbt_s(self) -> float | None:
        return max(self.gaps_s, default=None)

    def _targets(self, slo: Slo) -> Slo:
        return self.slo_class.slo if self.slo_class else slo

    def meets_ttft(self, slo: Slo) -> bool:
        slo = self._targets(slo)
        return self.failure is None and self.ttft_s is not None and self.ttft_s <= slo.ttft_s

    def meets_tpot(self, slo: Slo) -> bool:
        """Return whether TPOT is in its target, as it always is for a single token."""
        slo = self._targets(slo)
        return self.failure is None and (self.tpot_s is None or self.tpot_s <= slo.tpot_s)

    def meets_tbt(self, slo: Slo) -> bool:
        """Return whether the 99th percentile of the gaps is in the target for TBT."""
        slo = self._targets(slo)
        is_steady = slo.is_steady(slo.num_slow(self.gaps_s), self.num_tokens - 1)
        return self.failure is None and is_steady

    def meets(self, slo: Slo) -> bool:
        """Return whether the request met all targets, of its class or else of the run."""
        return self.meets_ttft(slo) and self.meets_tpot(slo) and self.meets_tbt(slo)
