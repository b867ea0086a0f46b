"""The tokens with which the parts of one MacroInstance know each other."""

import base64
import binascii
from dataclasses import dataclass, field

from macroserve.operator import names
from macroserve.operator.api import Api, ApiError
from macroserve.operator.kinds import SECRET
from macroserve.operator.resources import shared
from macroserve.operator.resources.blueprint import Blueprint


@dataclass(frozen=True, slots=True)
class Tokens:
    """secret: among the processes of the deployment. admin: of the head's admin API."""

    secret: str = field(repr=False)
    admin: str = field(repr=False)


class TokensError(Exception):
    """The Secret is there and does not hold what it should; the message is a sentence."""


async def tokens(api: Api, blueprint: Blueprint) -> Tokens:
    """Those of the MacroInstance's Secret; makes it where there is none.

    One that a person made beforehand is as good.
    """
    name = names.secret(blueprint.name)
    found = await api.get(SECRET, blueprint.namespace, name)
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
