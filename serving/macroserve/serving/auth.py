"""Who may call: one shared secret inside a deployment, API keys and an admin token outside."""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping

BEARER = "bearer "


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class TokenCheck:
    """Compares bearer tokens by digest, in constant time, against one or several."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(token.encode()).digest() for token in tokens]

    def allows(self, headers: Mapping[str, str]) -> bool:
        """``headers``: case-insensitive, as every HTTP library's are."""
        value = headers.get("Authorization") or ""
        if value[: len(BEARER)].lower() != BEARER:
            return False
        digest = hashlib.sha256(value[len(BEARER) :].encode()).digest()
        # Every one is compared, so that the time does not tell which matched.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)
