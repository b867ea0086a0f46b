"""External callers authenticate with bearer tokens: API keys or the admin token."""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping

BEARER = "bearer "


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """Return the bearer token in ``headers``, whose names are case-insensitive."""
    value = headers.get("Authorization") or ""
    return value[len(BEARER) :] if value[: len(BEARER)].lower() == BEARER else None


class TokenCheck:
    """The check compares a bearer token by digest, in constant time, with one or several tokens."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [_digest(token) for token in tokens]

    def allows(self, headers: Mapping[str, str]) -> bool:
        token = bearer_token(headers)
        if token is None:
            return False
        digest = _digest(token)
        # All tokens are compared, so that the time does not reveal which one matched.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _digest(token: str) -> bytes:
    # aiohttp has surrogates in place of bytes that are no UTF-8.
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
