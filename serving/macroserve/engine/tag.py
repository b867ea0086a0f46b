"""The tag of a request, with which an ingress passes Macroserve's own fields to an instance.

It is part of ``SamplingParams.extra_args`` of vLLM's token-in, token-out endpoint. It has ages
instead of clock times, because the two processes may run on different machines.
"""

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from macroserve.api.messages import RequestInfo
from macroserve.core.request import Slo

TAG_KEY = "macroserve"

HAND_BACK_PREFIX = "macroserve:"
"""Prefix of the ``stop_reason`` of a handed-back stream, before its ``HandBackReason``."""

DEAD_END = "macroserve-dead-end"
"""``stop_reason`` of a stream whose grammar allows no further token, on any instance."""


class RequestTag(RequestInfo, frozen=True, kw_only=True):
    def to_args(self) -> dict[str, Any]:
        return {TAG_KEY: msgspec.to_builtins(self)}

    @classmethod
    def from_args(cls, extra_args: Mapping[str, Any] | None, request_id: str, slo: Slo) -> Self:
        """Return the tag in ``extra_args``, or one with the instance's SLO."""
        if tag := (extra_args or {}).get(TAG_KEY):
            return msgspec.convert(tag, cls)
        return cls(route_id=request_id, age_s=0.0, slo=slo)
