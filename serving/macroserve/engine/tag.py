"""The ingress tells an instance about a request besides its tokens.

The tag travels in ``SamplingParams.extra_args`` of vLLM's token-in, token-out endpoint. It has ages
instead of clock readings, because the two processes may be on different machines.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from macroserve.core.request import Request, Slo

TAG_KEY = "macroserve"

HAND_BACK_PREFIX = "macroserve:"
"""Prefix of ``stop_reason`` before a ``HandBackReason`` at the end of a stream that was handed
back."""

DEAD_END = "macroserve-dead-end"
"""``stop_reason`` of a stream whose grammar allows no further token: it would end so on every
instance."""


@dataclass(frozen=True, slots=True)
class RequestTag:
    """route_id: the id that the cell scheduler counts this attempt under.

    age_s: time since the ingress accepted the request. num_streamed_tokens: tokens of the prompt
    that an earlier instance had already streamed. probe: see ``Request``.
    """

    route_id: str
    age_s: float
    slo: Slo
    num_streamed_tokens: int = 0
    probe: bool = False

    def to_args(self) -> dict[str, Any]:
        return {TAG_KEY: asdict(self)}

    @classmethod
    def from_args(cls, extra_args: Mapping[str, Any] | None, request_id: str, slo: Slo):
        """The tag in ``extra_args``, or one for an untagged request with the instance's SLO."""
        if tag := (extra_args or {}).get(TAG_KEY):
            return msgspec.convert(tag, cls)
        return cls(request_id, 0.0, slo)

    def request(
        self, request_id: str, num_prompt_tokens: int, max_new_tokens: int, now: float
    ) -> Request:
        return Request(
            request_id=request_id,
            arrival_s=now - self.age_s,
            num_prompt_tokens=num_prompt_tokens,
            max_new_tokens=max_new_tokens,
            slo=self.slo,
            num_streamed_tokens=self.num_streamed_tokens,
            probe=self.probe,
        )
