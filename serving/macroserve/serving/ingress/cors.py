"""Decide what a page of another origin may call, and which headers of the responses it may read."""

from collections.abc import Mapping
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp


def with_cors(app: ASGIApp, api: Mapping[str, Any]) -> ASGIApp:
    """Open the application to the origins that ``spec.api`` allows; without any, return it as it
    is.

    It stands in front of everything that answers, so that a browser can read refusals, too. It
    answers preflights itself: they have no key and no body, and call nothing.

    api: options by vLLM's names.
    """
    if not api.get("allowed_origins"):
        return app
    return CORSMiddleware(
        app,
        allow_origins=api["allowed_origins"],
        allow_methods=api["allowed_methods"],
        allow_headers=api["allowed_headers"],
        allow_credentials=api["allow_credentials"],
        # What clients' libraries read of an answer beside its body.
        expose_headers=["Retry-After", "X-Request-Id"],
    )
