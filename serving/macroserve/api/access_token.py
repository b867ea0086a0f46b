"""Short-lived tokens that authenticate callers, and proofs that authenticate answers.

A token has a few claims and their HMAC-SHA256 by each of the caller's keys (``api.keys``). It names
its audience, so a process that receives it by mistake cannot use it elsewhere. The proof in an
answer is the HMAC of the token and the status: only a holder of the key can compute it, and it fits
no other call, because each call has a new token.
"""

import base64
import hashlib
import hmac
import secrets
import time
from typing import NamedTuple

import msgspec

from macroserve.api.keys import KeyRing, Purpose

LIFETIME_S = 300
LEEWAY_S = 60
"""Largest expected difference between two machines' clocks, seconds."""
MAX_TOKEN_CHARS = 2048
NONCE_BYTES = 12


class AccessTokenError(ValueError):
    """An error whose message ends a sentence: why a token grants no access."""


class Audience(NamedTuple):
    """The callee for which a token is valid."""

    purpose: Purpose
    name: str = ""
    """Name of the called cell or instance; empty for any."""

    def __str__(self) -> str:
        return f"{self.purpose}/{self.name}"


class _Claims(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    audience: str
    issued_at: int
    """Unix time, seconds."""
    expires_at: int
    """Unix time, seconds."""
    nonce: str


def issue(ring: KeyRing, audience: Audience, now: float, nonce: str) -> str:
    """Return a token for one call.

    now: Unix time, seconds.
    nonce: random text, a new one for each call.
    """
    claims = _Claims(str(audience), int(now), int(now) + LIFETIME_S, nonce)
    body = base64.urlsafe_b64encode(msgspec.json.encode(claims)).decode().rstrip("=")
    return ".".join([body, *(_mac(key, "token", body) for key in ring.of(audience.purpose))])


def new_token(ring: KeyRing, audience: Audience) -> str:
    """Return a token for a call now."""
    return issue(ring, audience, time.time(), secrets.token_urlsafe(NONCE_BYTES))


def check(token: str, ring: KeyRing, audience: Audience, now: float) -> bytes:
    """Return the key shared with the caller, which proves the answer.

    Raises AccessTokenError unless a holder of such a key has issued the token, for this audience
    and around ``now``.
    """
    if len(token) > MAX_TOKEN_CHARS or not token.isascii():
        raise AccessTokenError("it is not a token")
    body, *macs = token.split(".")
    shared = [
        key
        for key in ring.of(audience.purpose)
        if any(hmac.compare_digest(_mac(key, "token", body), mac) for mac in macs)
    ]
    if not shared:
        raise AccessTokenError("it is not signed with a known key")
    claims = _decoded(body)
    if claims.audience != str(audience):
        raise AccessTokenError(f"it is for {claims.audience}, not for {audience}")
    if now < claims.issued_at - LEEWAY_S:
        raise AccessTokenError("it was issued in the future: do the machines' clocks differ?")
    if now > claims.expires_at + LEEWAY_S:
        raise AccessTokenError("it has expired: do the machines' clocks differ?")
    return shared[0]


def proof(key: bytes, token: str, status: int) -> str:
    """Return the proof that the answerer, who sends this HTTP status, holds the key."""
    return _mac(key, "answer", f"{token} {status}")


def is_proved(given: str, ring: KeyRing, audience: Audience, token: str, status: int) -> bool:
    """Return whether the called process itself answered with this status."""
    if not given.isascii():
        return False
    right = [proof(key, token, status) for key in ring.of(audience.purpose)]
    return any(hmac.compare_digest(mine, given) for mine in right)


def _mac(key: bytes, what: str, text: str) -> str:
    digest = hmac.digest(key, f"{what} {text}".encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _decoded(body: str) -> _Claims:
    try:
        padded = body + "=" * (-len(body) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=_Claims)
    except (msgspec.MsgspecError, ValueError) as error:
        raise AccessTokenError("its claims are invalid") from error
