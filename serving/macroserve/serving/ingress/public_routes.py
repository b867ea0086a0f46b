"""The routes of the public endpoint; all other paths are 404.

New versions of vLLM add routes: a test compares vLLM's routes with this list, so that none is
served before its access has been decided.
"""

import re
from dataclasses import dataclass
from enum import Enum


class Access(Enum):
    OPEN = "open"
    API_KEY = "API key"


@dataclass(frozen=True, slots=True)
class PublicRoute:
    path: str
    """Path in which ``{id}`` stands for 1 to 128 letters, digits, ``-`` and ``_``."""
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
"""Messages for the routes that vLLM has for other kinds of models."""

_PATTERNS = tuple((route.pattern, route) for route in PUBLIC_ROUTES)


def find_route(path: str) -> PublicRoute | None:
    """Return the route of a decoded path, which must match exactly, slashes and case included."""
    return next((route for pattern, route in _PATTERNS if pattern.fullmatch(path)), None)


def is_anthropic(path: str) -> bool:
    """Return whether the path belongs to Anthropic's API."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")
