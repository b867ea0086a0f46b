"""The keys of a deployment follow its secret when a person changes it. This module is pure.

The pods' files show a change of the Secret up to some minutes apart. Until all must have it, keys
of the former secret stay behind those of the new one: everything is signed with both, and who has
only one of them takes it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from macroserve.api.keys import MAX_KEYS, SHARED, Purpose, derived_key

KEEP_FORMER = timedelta(minutes=10)
"""Kubelets look at Secrets once a minute, with a cache as old as that at most."""

Keys = Mapping[Purpose, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Rotation:
    """The keys of a deployment after a rotation.

    Attributes:
        keys: Keys of each purpose, the newest first.
        since: When the secret last changed; None if no keys of a former secret are kept.
    """

    keys: Keys
    since: datetime | None


def rotated(secrets: Iterable[str], held: Keys, since: datetime | None, now: datetime) -> Rotation:
    """Return the keys that follow from the secrets (the newest first) and from the present keys."""
    given = tuple(secrets)
    newest = {p: tuple(derived_key(secret, p) for secret in given) for p in SHARED}
    former = {p: tuple(k for k in held.get(p, ()) if k not in newest[p]) for p in SHARED}
    has_changed = any(held.get(p) and held[p][0] != newest[p][0] for p in SHARED)
    if has_changed or since is None:
        since = now
    if not any(former.values()) or now - since > KEEP_FORMER:
        return Rotation(newest, None)
    return Rotation({p: (newest[p] + former[p])[:MAX_KEYS] for p in SHARED}, since)
