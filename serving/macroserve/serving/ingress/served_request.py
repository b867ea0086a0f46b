"""The record of a request at the ingress, and its line in the access log."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from macroserve.api.logs import get_logger
from macroserve.api.messages import RequestInfo
from macroserve.engine.tokens import RefusedError, TokenRequest, stop_string_met

CLIENT_CLOSED_REQUEST = 499
"""Status in nginx's logs of a request whose client has disconnected."""

log = get_logger(__name__)


class ServedRequest:
    """Times, tokens and outcome of a request, as its client sees them."""

    def __init__(self, arrival_s: float, info: RequestInfo) -> None:
        self.arrival_s = arrival_s
        self.slo_class = info.slo_class
        self._slo = info.slo
        self._num_slow = 0
        self.first_s: float | None = None
        self.last_s = arrival_s
        self.num_tokens = 0
        self.num_reroutes = 0
        self.outcome = "ok"
        """``ok``, ``failed``, ``refused`` or ``cancelled``."""
        self.status = HTTPStatus.OK.value

    def tokens(self, count: int, now: float) -> None:
        if count:
            if self.first_s is None:
                self.first_s = now
            else:
                self._num_slow += self._slo.is_slow(now - self.last_s)
            self.last_s = now
            self.num_tokens += count

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Return the mean time per token after the first, seconds; None for one token."""
        if self.first_s is None or self.num_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.num_tokens - 1)

    @property
    def attained(self) -> bool:
        if self.first_s is None:
            return False
        ttft_s, after_s = self.first_s - self.arrival_s, self.last_s - self.first_s
        return self._slo.is_met(ttft_s, after_s, self.num_tokens - 1, self._num_slow)

    def ended_by(self, error: BaseException) -> None:
        """Set the outcome from the error: a stop string was met, the client left, it was refused
        because it was late, or it failed."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            if not stop_string_met(error):
                self.outcome, self.status = "cancelled", CLIENT_CLOSED_REQUEST
        else:
            internal = HTTPStatus.INTERNAL_SERVER_ERROR
            self.status = error.status if isinstance(error, RefusedError) else internal.value
            is_late = self.status == HTTPStatus.TOO_MANY_REQUESTS
            self.outcome = "refused" if is_late else "failed"

    @contextmanager
    def logged(self, request: TokenRequest, model: str) -> Iterator[None]:
        """Log the request at its end, without text, tokens or keys."""
        try:
            yield
        except BaseException as error:
            self.ended_by(error)
            raise
        finally:
            log.info(
                "request finished",
                id=request.request_id,
                model=model,
                slo_class=self.slo_class,
                prompt_tokens=request.num_prompt_tokens,
                output_tokens=self.num_tokens,
                ttft_s=_rounded(self.ttft_s),
                tpot_s=_rounded(self.tpot_s),
                outcome=self.outcome,
                status=self.status,
                attained=self.outcome == "ok" and self.attained,
                reroutes=self.num_reroutes,
            )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
