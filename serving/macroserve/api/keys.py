"""The keys by which the parts of a deployment trust each other: one a purpose, from one secret.

The secret itself never travels and signs nothing. From it each purpose gets a key of its own by
HKDF-SHA256 (RFC 5869), so that a part can be given the keys that it needs and no others. While a
secret is being replaced, a purpose has several keys: everything is signed with each of them, and
whoever holds one of them takes it.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MAX_KEYS = 4
"""Of one purpose. Two while one secret takes the place of another, and some more in a hurry."""

_SALT = b"macroserve"


class Purpose(StrEnum):
    """What a key is for. Calls are named after what is called."""

    HANDLES = "handles"
    """Signs the handles of instances."""
    CELLS = "cells"
    """To ask the head where the cell schedulers are."""
    ROUTING = "routing"
    """To ask a cell scheduler where requests should run."""
    ORDERS = "orders"
    """To ask a cell scheduler for reports, and to order it."""
    GENERATION = "generation"
    """To have an instance generate tokens."""
    CONTROL = "control"
    """To follow an instance's status, and to order it."""
    ADMIN = "admin"
    """To ask and order the head or an ingress as the admin; follows from the admin token."""


class Role(StrEnum):
    """What kind of pod holds keys."""

    HEAD = "head"
    INGRESS = "ingress"
    INSTANCE = "instance"


PURPOSES: Mapping[Role, tuple[Purpose, ...]] = {
    Role.HEAD: (
        Purpose.HANDLES,
        Purpose.CELLS,
        Purpose.ROUTING,
        Purpose.ORDERS,
        Purpose.CONTROL,
    ),
    Role.INGRESS: (Purpose.CELLS, Purpose.ROUTING, Purpose.GENERATION),
    Role.INSTANCE: (Purpose.HANDLES, Purpose.GENERATION, Purpose.CONTROL),
}
"""The keys that a role needs: to call, to let callers in, or to sign. An ingress, the part that
clients reach, can neither sign a handle nor give an order."""
SHARED = tuple(purpose for purpose in Purpose if purpose is not Purpose.ADMIN)
"""Those whose keys follow from the deployment's secret."""


class KeysError(ValueError):
    """Text holds no keys; the message is the end of a sentence and holds no key."""


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys of some purposes, each purpose's newest first. Raises KeysError for none."""

    keys: Mapping[Purpose, tuple[str, ...]] = field(repr=False)

    def __post_init__(self) -> None:
        for purpose, keys in self.keys.items():
            if not keys or not all(keys):
                raise KeysError(f"there is no key for {purpose}")

    @classmethod
    def derived(cls, secrets: Iterable[str], purposes: Iterable[Purpose]) -> "KeyRing":
        """The keys for some purposes that follow from secrets, the newest of which is first."""
        given = tuple(secrets)
        return cls({p: tuple(derived_key(secret, p) for secret in given) for p in purposes})

    def of(self, purpose: Purpose) -> tuple[bytes, ...]:
        assert purpose in self.keys, f"this part has no key for {purpose}"
        return tuple(key.encode() for key in self.keys[purpose])


def derived_key(secret: str, purpose: Purpose) -> str:
    """A purpose's key, as text that can be a line of a file. Raises KeysError for no secret."""
    if not secret:
        raise KeysError("the secret is empty")
    return hkdf_sha256(secret.encode(), _SALT, f"macroserve/{purpose}".encode()).hex()


def hkdf_sha256(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """The first 32 bytes of HKDF with SHA-256 (RFC 5869)."""
    extracted = hmac.digest(salt, secret, hashlib.sha256)
    return hmac.digest(extracted, info + b"\x01", hashlib.sha256)


def parse_keys(text: str) -> tuple[str, ...]:
    """The keys or secrets of a file, one a line, the newest first. Raises KeysError for none, and
    for more than MAX_KEYS."""
    keys = tuple(dict.fromkeys(line for part in text.splitlines() if (line := part.strip())))
    if not keys:
        raise KeysError("it is empty")
    if len(keys) > MAX_KEYS:
        raise KeysError(f"it has {len(keys)} lines, more than {MAX_KEYS}")
    return keys
