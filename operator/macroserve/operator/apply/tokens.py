"""The Secret with the keys and tokens by which components and the operator authenticate."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from macroserve.api.keys import (
    MAX_KEYS,
    SHARED,
    KeyRing,
    KeysError,
    Purpose,
    derived_key,
    parse_keys,
)
from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import Api, ApiError
from macroserve.operator.k8s.kinds import SECRET, Object, annotations, is_deleting
from macroserve.operator.k8s.times import parsed, rfc3339
from macroserve.operator.observe.pods import has_started
from macroserve.operator.render import shared
from macroserve.operator.render.context import RenderContext
from macroserve.operator.render.pods import ADMIN_TOKEN, key_name

KEEP_FORMER = timedelta(minutes=10)
"""Kubelets sync Secrets once a minute, from a cache that is at most as old."""

Keys = Mapping[Purpose, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class TokenSecret:
    data: Mapping[str, str] = field(repr=False)
    former_admins: tuple[str, ...] = field(default=(), repr=False)
    """Earlier admin tokens, which a head may still accept."""

    @property
    def admin(self) -> str:
        return self.data[ADMIN_TOKEN].strip()

    @property
    def ring(self) -> KeyRing:
        """Return the keys with which the operator calls the components."""
        control = parse_keys(self.data[key_name(Purpose.CONTROL)])
        admin = KeyRing.derived((self.admin, *self.former_admins), [Purpose.ADMIN])
        return KeyRing({**admin.keys, Purpose.CONTROL: control})


class TokensError(Exception):
    """An error whose message is a sentence: the Secret is lost or invalid."""


async def tokens(
    api: Api,
    render_context: RenderContext,
    pods: Iterable[Object],
    known: TokenSecret | None,
    now: datetime,
) -> TokenSecret:
    """Return the content of the MacroInstance's Secret, created from ``known`` if it is absent.

    A Secret made by a person is used, and a changed secret takes effect. Raises ApiError and
        TokensError, also while ``pods`` run with lost keys: they would reject callers with new
        ones.
    """
    name = names.secret(render_context.name)
    found = await api.get(SECRET, render_context.namespace, name)
    if found is None and not known and any(has_started(p) and not is_deleting(p) for p in pods):
        raise TokensError(
            f"The Secret {name} is missing, and pods use its tokens: restore it, or delete all "
            f"pods of {render_context.name}, which then get new tokens."
        )
    if found is None:
        try:
            found = await api.create(SECRET, shared.tokens(render_context, known and known.data))
        except ApiError as error:
            if not error.is_conflict:
                raise
            found = await api.get(SECRET, render_context.namespace, name) or {}
    try:
        data = await _with_keys(api, render_context, found, now)
    except (KeyError, KeysError, binascii.Error, UnicodeDecodeError):
        keys = " and ".join(shared.TOKEN_KEYS)
        raise TokensError(f"The Secret {name} must have text under the keys {keys}.") from None
    return TokenSecret(data, _former_admins(known, data))


async def _with_keys(
    api: Api, render_context: RenderContext, found: Object, now: datetime
) -> Mapping[str, str]:
    """Return the data of the Secret after updating the keys that are derived from its secret.

    Raises ApiError, and other errors if the Secret lacks its secret or admin token.
    """
    raw = found.get("data") or {}
    data = {key: base64.b64decode(raw[key]).decode() for key in shared.TOKEN_KEYS}
    parse_keys(data[ADMIN_TOKEN])
    held = {purpose: _held(raw.get(key_name(purpose))) for purpose in SHARED}
    since = parsed(annotations(found).get(names.ROTATED_AT, ""))
    rotation = rotated(parse_keys(data[shared.SECRET]), held, since, now)
    keys = shared.key_data(rotation.keys)
    if rotation.keys != held or rotation.since != since:
        noted = rfc3339(rotation.since) if rotation.since else None
        notes = {names.ROTATED_AT: noted} if rotation.since != since else {}
        patch = {"metadata": {"annotations": notes}, "stringData": keys}
        await api.merge(SECRET, render_context.namespace, names.secret(render_context.name), patch)
    return {**data, **keys}


def _held(encoded: str | None) -> tuple[str, ...]:
    """Return the keys of an item; none, which derives them again, if it is absent or invalid."""
    try:
        return parse_keys(base64.b64decode(encoded or "").decode())
    except (KeysError, binascii.Error, UnicodeDecodeError):
        return ()


def _former_admins(known: TokenSecret | None, data: Mapping[str, str]) -> tuple[str, ...]:
    """Return earlier admin tokens: a head accepts a new one only after some minutes."""
    if known is None:
        return ()
    is_same = known.admin == data[ADMIN_TOKEN].strip()
    return known.former_admins if is_same else (known.admin,)


@dataclass(frozen=True, slots=True)
class Rotation:
    """The keys of a deployment after a rotation."""

    keys: Keys
    """Keys of each purpose, the newest first."""
    since: datetime | None
    """When the secret last changed; None if no keys of a former secret are kept."""


def rotated(secrets: Iterable[str], held: Keys, since: datetime | None, now: datetime) -> Rotation:
    """Return the keys for the secrets (the newest first), followed for a while by the held keys.

    Pods see a changed Secret up to some minutes apart. Until all have it, everything is signed with
    the former keys as well, and receivers accept either.
    """
    given = tuple(secrets)
    newest = {p: tuple(derived_key(secret, p) for secret in given) for p in SHARED}
    former = {p: tuple(k for k in held.get(p, ()) if k not in newest[p]) for p in SHARED}
    has_changed = any(held.get(p) and held[p][0] != newest[p][0] for p in SHARED)
    if has_changed or since is None:
        since = now
    if not any(former.values()) or now - since > KEEP_FORMER:
        return Rotation(newest, None)
    return Rotation({p: (newest[p] + former[p])[:MAX_KEYS] for p in SHARED}, since)
