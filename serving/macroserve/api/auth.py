"""Bearer tokens of external callers: API keys or the admin token."""

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
    """Return the bearer token in ``headers`` (case-insensitive names)."""
    value = headers.get("Authorization") or ""
    return value[len(BEARER) :] if value[: len(BEARER)].lower() == BEARER else None


class TokenCheck:
    """A set of accepted bearer tokens, compared by digest and in constant time."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [_digest(token) for token in tokens]

    def allows(self, headers: Mapping[str, str]) -> bool:
        token = bearer_token(headers)
        if token is None:
            return False
        digest = _digest(token)
        # Compare with every token, so that the time does not reveal which one matched.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _digest(token: str) -> bytes:
    # aiohttp decodes bytes that are not UTF-8 as surrogates.
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
