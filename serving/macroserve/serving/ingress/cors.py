"""CORS: calls that pages of other origins may make, and response headers that they may read."""

from collections.abc import Mapping
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp


def with_cors(app: ASGIApp, api: Mapping[str, Any]) -> ASGIApp:
    """Wrap the application for the origins that ``spec.api`` allows, if any.

    As the outermost layer it also lets browsers read refusals. It answers preflights itself: they
    have neither key nor body.

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
        # Headers that client libraries read.
        expose_headers=["Retry-After", "X-Request-Id"],
    )
