"""Keep the keys and tokens by which the parts of a MacroInstance and the operator know each
other."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from macroserve.api.keys import SHARED, KeyRing, KeysError, Purpose, parse_keys
from macroserve.operator.apply.rotation import rotated
from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import Api, ApiError
from macroserve.operator.k8s.kinds import SECRET, Object, annotations, is_deleting
from macroserve.operator.k8s.times import parsed, rfc3339
from macroserve.operator.observe.pods import has_started
from macroserve.operator.render import shared
from macroserve.operator.render.context import RenderContext
from macroserve.operator.render.pods import ADMIN_TOKEN, key_name


@dataclass(frozen=True, slots=True)
class TokenSecret:
    """Content of the Secret with keys and tokens."""

    data: Mapping[str, str] = field(repr=False)
    former_admins: tuple[str, ...] = field(default=(), repr=False)
    """Earlier admin tokens, which a head may still accept."""

    @property
    def admin(self) -> str:
        return self.data[ADMIN_TOKEN].strip()

    @property
    def ring(self) -> KeyRing:
        """Return the tokens with which the operator calls the parts."""
        control = parse_keys(self.data[key_name(Purpose.CONTROL)])
        admin = KeyRing.derived((self.admin, *self.former_admins), [Purpose.ADMIN])
        return KeyRing({**admin.keys, Purpose.CONTROL: control})


class TokensError(Exception):
    """The Secret is lost or its content is not valid; the message is a sentence."""


async def tokens(
    api: Api,
    render_context: RenderContext,
    pods: Iterable[Object],
    known: TokenSecret | None,
    now: datetime,
) -> TokenSecret:
    """Return the content of the MacroInstance's Secret. Create the Secret if it is absent, from
    ``known`` if that is given.

    One that a person made beforehand is as good, and a secret that a person has changed is taken
    over. Raises ApiError and TokensError, also while ``pods`` run with keys that nobody knows any
    more: they would not let in who has new ones.
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
    """Return the data of the Secret after its keys follow from its secret. Raise ApiError, and any
    error that shows that the Secret has no secret and no admin token.
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
    """Return the keys of an item of the Secret; none if it is absent or not valid. They are then
    derived again.
    """
    try:
        return parse_keys(base64.b64decode(encoded or "").decode())
    except (KeysError, binascii.Error, UnicodeDecodeError):
        return ()


def _former_admins(known: TokenSecret | None, data: Mapping[str, str]) -> tuple[str, ...]:
    """Return the previous token: a head accepts a new one after some minutes."""
    if known is None:
        return ()
    is_same = known.admin == data[ADMIN_TOKEN].strip()
    return known.former_admins if is_same else (known.admin,)
