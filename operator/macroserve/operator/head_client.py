"""The operator's words to a head and to instances: reports and orders, over HTTP."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp
import msgspec

from macroserve.api.access_token import Audience, issue
from macroserve.api.keys import KeyRing, Purpose
from macroserve.api.messages import (
    ADMIN_PREFIX,
    IDENTITY_PATH,
    AdoptOrder,
    DrainOrder,
    HeadReport,
    InstanceIdentity,
    MigrateOrder,
    PoolOrder,
    ReleaseOrder,
)
from macroserve.core.scaling.load import LoadReport
from macroserve.core.status import Pool
from macroserve.operator.apply.tls import Tls

REPORT_TIMEOUT = aiohttp.ClientTimeout(total=5)
ORDER_TIMEOUT = aiohttp.ClientTimeout(total=15)
DEPLOY_TIMEOUT = aiohttp.ClientTimeout(total=60)
"""A cell scheduler is a process that has to start."""
MAX_CAUSE_CHARS = 300
NONCE_BYTES = 12

_T = TypeVar("_T")


class CallError(Exception):
    """A head or an instance refused, or did not answer; the message is a sentence.

    unauthorized: it has other tokens than the caller.
    """

    def __init__(self, message: str, unauthorized: bool = False) -> None:
        super().__init__(message)
        self.unauthorized = unauthorized


class HeadClient:
    """address: base URL. ring: with keys for ADMIN. tls: for https. Every call raises CallError."""

    def __init__(
        self, http: aiohttp.ClientSession, address: str, ring: KeyRing, tls: Tls | None = None
    ) -> None:
        self._http = http
        self._tls = tls
        self._base = address + ADMIN_PREFIX
        self._ring = ring

    async def report(self) -> HeadReport:
        return await self._get("cells", HeadReport)

    async def load(self) -> LoadReport:
        return await self._get("load", LoadReport)

    async def deploy(self, cell: str) -> None:
        """Returns when the cell's scheduler runs."""
        await self._order("PUT", f"cells/{cell}", timeout=DEPLOY_TIMEOUT)

    async def delete(self, cell: str) -> None:
        await self._order("DELETE", f"cells/{cell}", timeout=DEPLOY_TIMEOUT)

    async def adopt(self, cell: str, handle: str) -> None:
        await self._order("POST", f"cells/{cell}/adopt", AdoptOrder(handle))

    async def release(self, cell: str, instance: str) -> None:
        await self._order("POST", f"cells/{cell}/release", ReleaseOrder(instance))

    async def set_pool(self, cell: str, instance: str, pool: Pool) -> None:
        await self._order("POST", f"cells/{cell}/pool", PoolOrder(instance, pool))

    async def drain(self, cell: str, instance: str) -> None:
        await self._order("POST", f"cells/{cell}/drain", DrainOrder(instance, True))

    async def migrate(self, instance: str, source: str, target: str) -> None:
        await self._order("POST", "migrate", MigrateOrder(instance, source, target))

    async def _get(self, path: str, kind: type[_T]) -> _T:
        body = await _call(
            self._http,
            "GET",
            f"{self._base}/{path}",
            self._headers(),
            None,
            REPORT_TIMEOUT,
            self._tls,
        )
        return _decoded(body, kind, path)

    async def _order(
        self,
        method: str,
        path: str,
        order: msgspec.Struct | None = None,
        timeout: aiohttp.ClientTimeout = ORDER_TIMEOUT,
    ) -> None:
        url = f"{self._base}/{path}"
        await _call(self._http, method, url, self._headers(), order, timeout, self._tls)

    def _headers(self) -> dict[str, str]:
        return _token(self._ring, Audience(Purpose.ADMIN))


async def identity(
    http: aiohttp.ClientSession, address: str, name: str, ring: KeyRing, tls: Tls | None = None
) -> InstanceIdentity:
    """Return what the instance of that name, at a base URL, says of itself. Raises CallError."""
    url = address + IDENTITY_PATH
    headers = _token(ring, Audience(Purpose.CONTROL, name))
    body = await _call(http, "GET", url, headers, None, REPORT_TIMEOUT, tls)
    return _decoded(body, InstanceIdentity, "identity")


def _token(ring: KeyRing, audience: Audience) -> dict[str, str]:
    token = issue(ring, audience, time.time(), secrets.token_urlsafe(NONCE_BYTES))
    return {"Authorization": f"Bearer {token}"}


async def _call(
    http: aiohttp.ClientSession,
    method: str,
    url: str,
    headers: dict[str, str],
    order: msgspec.Struct | None,
    timeout: aiohttp.ClientTimeout,
    tls: Tls | None,
) -> bytes:
    data = None if order is None else msgspec.json.encode(order)
    named: dict[str, Any] = {"ssl": tls.context, "server_hostname": tls.name} if tls else {}
    with _told(url):
        async with http.request(
            method, url, headers=headers, data=data, timeout=timeout, **named
        ) as response:
            body = await response.read()
    if response.status == HTTPStatus.UNAUTHORIZED:
        raise CallError(f"{url} refuses the token.", unauthorized=True)
    if response.status != HTTPStatus.OK:
        said = body.decode(errors="replace")[:MAX_CAUSE_CHARS]
        raise CallError(f"{url} answers with HTTP {response.status}: {said}")
    return body


def _decoded(body: bytes, kind: type[_T], what: str) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise CallError(f"The answer to {what} is not understood: {error}.") from error


@contextmanager
def _told(url: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise CallError(f"{url} does not answer in time.") from error
    except aiohttp.ClientError as error:
        raise CallError(f"{url} does not answer: {error}.") from error
