"""Requests of an ingress to an instance."""

from collections.abc import Iterable
from typing import Any

from macroserve.api.messages import RequestInfo
from macroserve.core.request import Slo
from macroserve.engine.tokens import TokenRequest, pack


def token_request(
    name: str = "r",
    prompt: Iterable[int] = (1, 2, 3),
    max_new_tokens: int = 8,
    **changes: Any,
) -> TokenRequest:
    """Return a request for greedy tokens with some other fields, which may be those of its info."""
    info: dict[str, Any] = {"route_id": name, "age_s": 0.0, "slo": Slo(5.0, 0.1)}
    fields: dict[str, Any] = {"sampling": {"temperature": 0.0, "ignore_eos": True}}
    for field, value in changes.items():
        (info if field in RequestInfo.__struct_fields__ else fields)[field] = value
    return TokenRequest(
        request_id=name,
        info=RequestInfo(**info),
        token_ids=pack(prompt),
        max_new_tokens=max_new_tokens,
        **fields,
    )
