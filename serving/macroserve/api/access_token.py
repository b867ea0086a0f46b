"""Access tokens: short-lived proof of who calls, and the called part's proof of who answers.

A token is a few claims and their HMAC-SHA256 by each of the caller's keys (``core.keys``). It
names whom it is for, so that whoever it is sent to by mistake cannot use it elsewhere. An answer
is proved by the HMAC of the token and the status: only who holds the key can make it, and it fits
no other call, because each call has a token of its own.
"""

import base64
import hashlib
import hmac
from typing import NamedTuple

import msgspec

from macroserve.api.keys import KeyRing, Purpose

LIFETIME_S = 300
LEEWAY_S = 60
"""By how much the clocks of two machines may differ."""
MAX_TOKEN_CHARS = 2048


class AccessTokenError(ValueError):
    """A token does not open what it was sent to; the message is the end of a sentence."""


class Audience(NamedTuple):
    """For whom a token is. name: of the cell or instance that is called; empty for any."""

    purpose: Purpose
    name: str = ""

    def __str__(self) -> str:
        return f"{self.purpose}/{self.name}"


class _Claims(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """issued_at, expires_at: Unix time, seconds."""

    audience: str
    issued_at: int
    expires_at: int
    nonce: str


def issue(ring: KeyRing, audience: Audience, now: float, nonce: str) -> str:
    """A token for one call. now: Unix time, seconds. nonce: random, another one for each call."""
    claims = _Claims(str(audience), int(now), int(now) + LIFETIME_S, nonce)
    body = base64.urlsafe_b64encode(msgspec.json.encode(claims)).decode().rstrip("=")
    return ".".join([body, *(_mac(key, "token", body) for key in ring.of(audience.purpose))])


def check(token: str, ring: KeyRing, audience: Audience, now: float) -> bytes:
    """The key that the caller shares with us, with which to prove the answer.

    Raises AccessTokenError for a token that no holder of such a key has issued, for this audience
    and about now.
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
        raise AccessTokenError("no key that is held here has signed it")
    claims = _decoded(body)
    if claims.audience != str(audience):
        raise AccessTokenError(f"it is for {claims.audience}, not for {audience}")
    if now < claims.issued_at - LEEWAY_S:
        raise AccessTokenError("it was issued in the future: do the machines' clocks differ?")
    if now > claims.expires_at + LEEWAY_S:
        raise AccessTokenError("it has expired: do the machines' clocks differ?")
    return shared[0]


def proof(key: bytes, token: str, status: int) -> str:
    """Return the proof, in an answer with that HTTP status, that the answerer holds the key."""
    return _mac(key, "answer", f"{token} {status}")


def is_proved(given: str, ring: KeyRing, audience: Audience, token: str, status: int) -> bool:
    """Whether the called part, and no other, has answered the call with this status."""
    if not given.isascii():
        return False
    right = [proof(key, token, status) for key in ring.of(audience.purpose)]
    return any(hmac.compare_digest(mine, given) for mine in right)


def _mac(key: bytes, what: str, text: str) -> str:
    digest = hmac.digest(key, f"{what} {text}".encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _decoded(body: str) -> _Claims:
    """Only what a holder of a key has made comes here."""
    try:
        padded = body + "=" * (-len(body) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=_Claims)
    except (msgspec.MsgspecError, ValueError) as error:
        raise AccessTokenError("its claims are not understood") from error
