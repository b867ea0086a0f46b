"""Calls between the components of a deployment, with a token in each call and a proof in each
answer.

Another program, or one with other keys, may have taken over an address. Callers therefore ignore
any answer, whatever its status, without the proof that the answering server could check the token.
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
"""Header that ``to`` sets and the session replaces by the token; it is never sent."""


class UnprovedError(aiohttp.ClientError):
    """An answer without proof: another program is at the address, or it has other keys."""


def to(audience: Audience) -> dict[str, str]:
    """Return the headers of a call in a session that ``session`` returned."""
    return {_AUDIENCE_HEADER: str(audience)}


def session(
    keys: LiveKeys, connecting: Mapping[str, Any] | None = None, **options: Any
) -> aiohttp.ClientSession:
    """Return a session in which requests with the headers of ``to`` carry tokens and raise
    UnprovedError for answers without proof. https uses the deployment's own TLS.

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
        # Logged here, as callers retry without logging.
        if isinstance(cause := error.os_error, ssl.SSLError):
            log_failed_handshake(request.url.authority, cause)
        raise


@dataclass(frozen=True, slots=True)
class Admission:
    """An admitted call."""

    _key: bytes = field(repr=False)
    _token: str = field(repr=False)

    def headers(self, status: int) -> dict[str, str]:
        """Return the headers that prove an answer with that status."""
        return {PROOF_HEADER: proof(self._key, self._token, status)}


def admission(
    ring: KeyRing, headers: Mapping[str, str], audiences: Collection[Audience]
) -> Admission | None:
    """Return the admission of a call with a token for one of the audiences, else None.

    headers: case-insensitive.
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
