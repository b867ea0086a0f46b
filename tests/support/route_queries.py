"""Queries of an ingress for a small request."""

from typing import Any

from macroserve.api.messages import RouteQuery
from macroserve.core.request import Slo


def route_query(**changes: Any) -> RouteQuery:
    fields: dict[str, Any] = {
        "route_id": "r",
        "age_s": 0.0,
        "slo": Slo(1.0, 0.1),
        "num_prompt_tokens": 100,
        "max_new_tokens": 10,
        "predicted_new_tokens": 8,
    }
    return RouteQuery(**{**fields, **changes})
