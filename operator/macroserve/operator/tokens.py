"""The tokens with which the parts of one MacroInstance know each other."""

import base64
import binascii
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field

from macroserve.operator import names
from macroserve.operator.api import Api, ApiError
from macroserve.operator.kinds import SECRET
from macroserve.operator.objects import Object, is_deleting
from macroserve.operator.observe import has_started
from macroserve.operator.resources import shared
from macroserve.operator.resources.blueprint import Blueprint


@dataclass(frozen=True, slots=True)
class Tokens:
    """secret: among the processes of the deployment. admin: of the head's admin API."""

    secret: str = field(repr=False)
    admin: str = field(repr=False)


class TokensError(Exception):
    """The Secret does not hold what it should, or is lost; the message is a sentence."""


async def tokens(api: Api, blueprint: Blueprint, pods: Iterable[Object]) -> Tokens:
    """Those of the MacroInstance's Secret; makes it where there is none.

    One that a person made beforehand is as good. Raises ApiError and TokensError, also while
    ``pods`` run with tokens that nobody knows any more: they would not let in who has new ones.
    """
    name = names.secret(blueprint.name)
    found = await api.get(SECRET, blueprint.namespace, name)
    if found is None and any(has_started(pod) and not is_deleting(pod) for pod in pods):
        raise TokensError(
            f"The Secret {name} is gone, and pods run with what it held: put it back, or delete "
            f"all pods of {blueprint.name}, which then get new tokens."
        )
    if found is None:
        try:
            found = await api.create(SECRET, shared.tokens(blueprint))
        except ApiError as error:
            if not error.is_conflict:
                raise
            found = await api.get(SECRET, blueprint.namespace, name) or {}
    data = found.get("data") or {}
    try:
        values = [base64.b64decode(data[key]).decode() for key in shared.TOKEN_KEYS]
    except (KeyError, binascii.Error, UnicodeDecodeError):
        keys = " and ".join(shared.TOKEN_KEYS)
        raise TokensError(f"The Secret {name} must have text under the keys {keys}.") from None
    return Tokens(*values)


async def restore(api: Api, blueprint: Blueprint, known: Tokens) -> None:
    """Makes the Secret again if it is gone. Raises ApiError."""
    if await api.get(SECRET, blueprint.namespace, names.secret(blueprint.name)) is None:
        await api.create(SECRET, shared.tokens(blueprint, astuple(known)))
