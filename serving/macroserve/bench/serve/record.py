"""Record of one request."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from macroserve.core.request import Slo
from macroserve.core.slo_class import SloClass


class Failure(StrEnum):
    """Reason for the failure of a request."""

    CONNECT = "connect"
    HTTP = "http"
    """A status other than 200."""
    STREAM = "stream"
    """An error inside the stream."""
    MALFORMED = "malformed"
    """Not an OpenAI stream."""
    TRUNCATED = "truncated"
    """A stream that ended early or without a token."""
    DISCONNECT = "disconnect"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    """The run was stopped; the request does not count."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as its client saw it. Times are in seconds since the start of the run, durations
    since the request was sent."""

    index: int
    scheduled_s: float
    """Planned time of sending."""
    sent_s: float
    ended_s: float
    num_prompt_tokens: int
    """Prompt tokens as reported by the endpoint, otherwise as planned."""
    num_planned_tokens: int
    """Output tokens requested."""
    num_tokens: int = 0
    """Output tokens received."""
    num_cached_tokens: int | None = None
    """Prompt tokens found in a prefix cache; None if the endpoint does not report it."""
    failure: Failure | None = None
    detail: str = ""
    """Error in words."""
    http_status: int | None = None
    x_request_id: str | None = None
    ttft_s: float | None = None
    """Set for failed requests with a token as well, like ``e2e_s``."""
    e2e_s: float | None = None
    gaps_s: Sequence[float] = ()
    """Gaps between successive chunks with tokens, in single precision to save memory."""
    turn: int = 0
    """Number of the turn in its conversation, from 0."""
    num_unsent: int = 0
    """Turns not sent because the conversation ended early with this one."""
    slo_class: SloClass | None = None
    """Class whose targets replace those of the run, if any."""

    @property
    def send_lag_s(self) -> float:
        """Return the client's delay in sending the request, seconds."""
        return self.sent_s - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """Return the mean time per output token after the first; None with fewer than two."""
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
        """Return whether TPOT is within its target; always for a single token."""
        slo = self._targets(slo)
        return self.failure is None and (self.tpot_s is None or self.tpot_s <= slo.tpot_s)

    def meets_tbt(self, slo: Slo) -> bool:
        """Return whether the 99th percentile of the gaps is within the TBT target."""
        slo = self._targets(slo)
        is_steady = slo.is_steady(slo.num_slow(self.gaps_s), self.num_tokens - 1)
        return self.failure is None and is_steady

    def meets(self, slo: Slo) -> bool:
        """Return whether the request met all targets of its class or of the run."""
        return self.meets_ttft(slo) and self.meets_tpot(slo) and self.meets_tbt(slo)
