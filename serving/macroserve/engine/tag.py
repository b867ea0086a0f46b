"""The ingress tells an instance about a request besides its tokens.

The tag travels in ``SamplingParams.extra_args`` of vLLM's token-in, token-out endpoint. It has ages
instead of clock readings, because the two processes may be on different machines.
"""

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from macroserve.api.messages import RequestInfo
from macroserve.core.request import Slo

TAG_KEY = "macroserve"

HAND_BACK_PREFIX = "macroserve:"
"""Prefix of ``stop_reason`` before a ``HandBackReason`` at the end of a stream that was handed
back."""

DEAD_END = "macroserve-dead-end"
"""``stop_reason`` of a stream whose grammar allows no further token: it would end so on every
instance."""


class RequestTag(RequestInfo, frozen=True, kw_only=True):
    """A request's tokens arrive at an instance with this tag."""

    def to_args(self) -> dict[str, Any]:
        return {TAG_KEY: msgspec.to_builtins(self)}

    @classmethod
    def from_args(cls, extra_args: Mapping[str, Any] | None, request_id: str, slo: Slo) -> Self:
        """Return the tag in ``extra_args``, else one with the SLO of the instance."""
        if tag := (extra_args or {}).get(TAG_KEY):
            return msgspec.convert(tag, cls)
        return cls(route_id=request_id, age_s=0.0, slo=slo)
