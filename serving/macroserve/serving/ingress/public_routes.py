"""The routes of the public endpoint: what is not listed here does not exist for a client.

vLLM's routers bring routes of their own, and a new version brings new ones: a test compares them
with this list, so that none is served before somebody has decided who may call it.
"""

import re
from dataclasses import dataclass
from enum import Enum


class Access(Enum):
    OPEN = "open"
    API_KEY = "API key"


@dataclass(frozen=True, slots=True)
class PublicRoute:
    """A client may call this route."""

    path: str
    """Literal path, but for ``{id}``, which is 1 to 128 letters, digits, ``-`` and ``_``."""
    methods: tuple[str, ...]
    access: Access = Access.API_KEY

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.path).replace(r"\{id\}", "[A-Za-z0-9_-]{1,128}"))


PUBLIC_ROUTES = (
    PublicRoute("/health", ("GET", "HEAD"), Access.OPEN),
    PublicRoute("/ready", ("GET", "HEAD"), Access.OPEN),
    PublicRoute("/version", ("GET",)),
    PublicRoute("/v1/models", ("GET",)),
    PublicRoute("/v1/chat/completions", ("POST",)),
    PublicRoute("/v1/chat/completions/batch", ("POST",)),
    PublicRoute("/v1/completions", ("POST",)),
    PublicRoute("/v1/responses", ("POST",)),
    PublicRoute("/v1/responses/{id}", ("GET",)),
    PublicRoute("/v1/responses/{id}/cancel", ("POST",)),
    PublicRoute("/v1/messages", ("POST",)),
    PublicRoute("/v1/messages/count_tokens", ("POST",)),
    PublicRoute("/tokenize", ("POST",)),
    PublicRoute("/detokenize", ("POST",)),
    PublicRoute("/generative_scoring", ("POST",)),
)

UNSERVED = {
    **dict.fromkeys(
        (
            "/v1/embeddings",
            "/v2/embed",
            "/pooling",
            "/classify",
            "/score",
            "/v1/score",
            "/rerank",
            "/v1/rerank",
            "/v2/rerank",
        ),
        "embeddings, scores and classes are not served, only generation; /generative_scoring gives "
        "the probabilities of labels",
    ),
    **dict.fromkeys(
        ("/v1/audio/transcriptions", "/v1/audio/translations"),
        "audio is not served, only text and images",
    ),
}
"""Routes that vLLM has for other models, and what a client hears of them."""

_PATTERNS = tuple((route.pattern, route) for route in PUBLIC_ROUTES)


def find_route(path: str) -> PublicRoute | None:
    """Return the route of a decoded path, which has to match exactly: no doubled or trailing
    slashes, no dots, no other case."""
    return next((route for pattern, route in _PATTERNS if pattern.fullmatch(path)), None)


def is_anthropic(path: str) -> bool:
    """Return whether clients of Anthropic's API call this path, and expect its errors."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")
