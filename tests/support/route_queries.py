"""Queries of an ingress for a small request."""

from typing import Any

from macroserve.api.messages import RequestInfo, RouteQuery
from macroserve.core.request import Slo


def route_query(**changes: Any) -> RouteQuery:
    """Return a query with some other fields, which may be those of its info."""
    info: dict[str, Any] = {"route_id": "r", "age_s": 0.0, "slo": Slo(1.0, 0.1)}
    fields: dict[str, Any] = {
        "num_prompt_tokens": 100,
        "max_new_tokens": 10,
        "predicted_new_tokens": 8,
    }
    for name, value in changes.items():
        (info if name in RequestInfo.__struct_fields__ else fields)[name] = value
    return RouteQuery(info=RequestInfo(**info), **fields)
