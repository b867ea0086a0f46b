"""Calls between the parts of a deployment: each carries a token, and each answer its proof.

What is at an address may be something else than before, or know other keys. Whoever calls
therefore takes no answer, whatever its status, from anyone who does not prove that the token was
for them.
"""

import ssl
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import ClientHandlerType

from macroserve.api.access_token import (
    AccessTokenError,
    Audience,
    check,
    is_proved,
    new_token,
    proof,
)
from macroserve.api.auth import bearer, bearer_token
from macroserve.api.keys import KeyRing, Purpose
from macroserve.serving.security.key_source import LiveKeys
from macroserve.serving.security.tls import log_failed_handshake

PROOF_HEADER = "X-Macroserve-Proof"
_AUDIENCE_HEADER = "X-Macroserve-Audience"
"""Header that ``to`` sets and the session replaces by the token: it never travels."""


class UnprovedError(aiohttp.ClientError):
    """The answer is not proved: another program is at the address, or it has other keys."""


def to(audience: Audience) -> dict[str, str]:
    """Return the headers of a call in a session of ``session``."""
    return {_AUDIENCE_HEADER: str(audience)}


def session(
    keys: LiveKeys, connecting: Mapping[str, Any] | None = None, **options: Any
) -> aiohttp.ClientSession:
    """Return a session in which requests with the headers of ``to`` carry tokens, and raise
    UnprovedError unless the answer is proved. https is the deployment's own.

    connecting: options of ``aiohttp.TCPConnector``.
    options: options of ``aiohttp.ClientSession``.
    """

    async def prove(
        request: aiohttp.ClientRequest, handler: ClientHandlerType
    ) -> aiohttp.ClientResponse:
        named = request.headers.popone(_AUDIENCE_HEADER, None)
        if named is None:
            return await _sent(request, handler)
        purpose, _, name = named.partition("/")
        audience, ring = Audience(Purpose(purpose), name), keys.ring
        token = new_token(ring, audience)
        request.headers.update(bearer(token))
        response = await _sent(request, handler)
        given = response.headers.get(PROOF_HEADER, "")
        if is_proved(given, ring, audience, token, response.status):
            return response
        response.close()
        raise UnprovedError(f"HTTP {response.status} without proof from {request.url.authority}")

    tls = keys.tls.client if keys.tls else True
    connector = aiohttp.TCPConnector(ssl=tls, **(connecting or {}))
    return aiohttp.ClientSession(connector=connector, middlewares=(prove,), **options)


async def _sent(
    request: aiohttp.ClientRequest, handler: ClientHandlerType
) -> aiohttp.ClientResponse:
    try:
        return await handler(request)
    except aiohttp.ClientSSLError as error:
        # Callers retry or go elsewhere, and log nothing.
        if isinstance(cause := error.os_error, ssl.SSLError):
            log_failed_handshake(request.url.authority, cause)
        raise


@dataclass(frozen=True, slots=True)
class Admission:
    """A call was let in."""

    _key: bytes = field(repr=False)
    _token: str = field(repr=False)

    def headers(self, status: int) -> dict[str, str]:
        """Return the headers of an answer with that status: the proof that it is ours."""
        return {PROOF_HEADER: proof(self._key, self._token, status)}


def admission(
    ring: KeyRing, headers: Mapping[str, str], audiences: Collection[Audience]
) -> Admission | None:
    """Admit a call that has a token for one of the audiences; return None for any other.

    headers: headers of the call, case-insensitive.
    """
    token = bearer_token(headers)
    if token is None:
        return None
    for audience in audiences:
        try:
            return Admission(check(token, ring, audience, time.time()), token)
        except AccessTokenError:
            continue
    return None
