"""Keys by which a deployment's components trust each other: one per purpose, from one secret.

The secret itself never travels and signs nothing. HKDF-SHA256 (RFC 5869) derives a key for each
purpose, so that a component gets only the keys that it needs. During a rotation a purpose has
several keys: senders sign with each of them, receivers accept any.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MAX_KEYS = 4
"""Most keys of one purpose: two during a rotation, and a margin for emergencies."""

_SALT = b"macroserve"


class Purpose(StrEnum):
    """Purpose of a key. Calls are named after the called component."""

    HANDLES = "handles"
    """Sign handles of instances."""
    CELLS = "cells"
    """Ask the head for the addresses of the cell schedulers."""
    ROUTING = "routing"
    """Ask a cell scheduler where requests should run."""
    ORDERS = "orders"
    """Ask a cell scheduler for reports, and give it orders."""
    GENERATION = "generation"
    """Ask an instance to generate tokens."""
    CONTROL = "control"
    """Follow an instance's status, and give it orders."""
    ADMIN = "admin"
    """Call the head or an ingress as the admin; derived from the admin token."""


class Role(StrEnum):
    """Role of a pod that holds keys."""

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
"""Keys that a role needs to call, to authorize callers, or to sign. Clients reach only ingresses,
which can neither sign a handle nor give an order."""
SHARED = tuple(purpose for purpose in Purpose if purpose is not Purpose.ADMIN)
"""Purposes whose keys are derived from the deployment's secret."""


class KeysError(ValueError):
    """An error whose message ends a sentence and contains no key."""


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Keys by purpose, the newest first. Raises KeysError if a purpose has none."""

    keys: Mapping[Purpose, tuple[str, ...]] = field(repr=False)

    def __post_init__(self) -> None:
        for purpose, keys in self.keys.items():
            if not keys or not all(keys):
                raise KeysError(f"there is no key for {purpose}")

    @classmethod
    def derived(cls, secrets: Iterable[str], purposes: Iterable[Purpose]) -> "KeyRing":
        """Derive keys for the purposes from secrets, the newest first."""
        given = tuple(secrets)
        return cls({p: tuple(derived_key(secret, p) for secret in given) for p in purposes})

    def of(self, purpose: Purpose) -> tuple[bytes, ...]:
        assert purpose in self.keys, f"this part has no key for {purpose}"
        return tuple(key.encode() for key in self.keys[purpose])


def derived_key(secret: str, purpose: Purpose) -> str:
    """Return the key of a purpose as hexadecimal text. Raises KeysError for an empty secret."""
    if not secret:
        raise KeysError("the secret is empty")
    return hkdf_sha256(secret.encode(), _SALT, f"macroserve/{purpose}".encode()).hex()


def hkdf_sha256(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """Return the first 32 bytes of HKDF with SHA-256 (RFC 5869)."""
    extracted = hmac.digest(salt, secret, hashlib.sha256)
    return hmac.digest(extracted, info + b"\x01", hashlib.sha256)


def parse_keys(text: str) -> tuple[str, ...]:
    """Return the keys or secrets of a file, one per line, the newest first.

    Raises KeysError for none, and for more than MAX_KEYS.
    """
    keys = tuple(dict.fromkeys(line for part in text.splitlines() if (line := part.strip())))
    if not keys:
        raise KeysError("it is empty")
    if len(keys) > MAX_KEYS:
        raise KeysError(f"it has {len(keys)} lines, more than {MAX_KEYS}")
    return keys
