"""Client of the admin API: reads reports and sends orders to cells.

The operator calls the head; ``macroserve up`` and ``macroserve status`` call a local ingress.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp
import msgspec

from macroserve.api.access_token import Audience, new_token
from macroserve.api.auth import bearer
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
    Report,
)
from macroserve.api.tls import TlsPeer
from macroserve.core.scaling.load import LoadReport
from macroserve.core.status import Pool

MAX_CAUSE_CHARS = 300

_T = TypeVar("_T")


class AdminError(Exception):
    """An error whose message is a sentence: the callee refused or did not answer."""


class UnauthorizedError(AdminError):
    """The callee rejected the token, because its keys differ from the caller's."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    report_s: float = 5.0
    order_s: float = 15.0
    deploy_s: float = 60.0
    """Includes the start of the cell scheduler's process."""


LOCAL_TIMEOUTS = Timeouts(report_s=30.0, order_s=30.0)
"""Timeouts on one machine, where engines that load models use the same cores."""


class AdminClient:
    """Client of the admin API at one base URL. Every call raises AdminError.

    authorization: returns the headers of one call.
    tls: trusted peer of an ``https`` endpoint.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        endpoint: str,
        authorization: Callable[[], dict[str, str]],
        tls: TlsPeer | None = None,
        timeouts: Timeouts = Timeouts(),
    ) -> None:
        self._http = http
        self._base = endpoint + ADMIN_PREFIX
        self._authorization = authorization
        self._tls = tls
        self._timeouts = timeouts

    async def report(self) -> Report:
        return await self._get("report", Report)

    async def head_report(self) -> HeadReport:
        """Return the report and the cells that have a scheduler; only a head knows them."""
        return await self._get("cells", HeadReport)

    async def load(self) -> LoadReport:
        """Return the load of the last minutes; only a head knows it."""
        return await self._get("load", LoadReport)

    async def deploy_cell(self, cell: str) -> None:
        """Start a cell's scheduler; return when it runs."""
        await self._call("PUT", f"cells/{cell}", self._timeouts.deploy_s)

    async def delete_cell(self, cell: str) -> None:
        """End the scheduler of a cell without instances."""
        await self._call("DELETE", f"cells/{cell}", self._timeouts.deploy_s)

    async def adopt(self, cell: str, handle: str) -> None:
        await self._order(f"cells/{cell}/adopt", AdoptOrder(handle))

    async def detach(self, cell: str, instance: str) -> None:
        await self._order(f"cells/{cell}/release", ReleaseOrder(instance))

    async def drain(self, cell: str, instance: str) -> None:
        """Take an instance out of its cell's rotation; it completes its requests."""
        await self._order(f"cells/{cell}/drain", DrainOrder(instance, True))

    async def migrate(
        self, instance: str, from_cell: str, to_cell: str, as_pool: Pool | None = None
    ) -> float:
        """Move an instance's handle between cells while its streams continue.

        Returns the seconds from the release to the adoption.

        to_cell: may equal ``from_cell``.
        as_pool: new role; None keeps it.
        """
        if as_pool:
            # The handle that the cell signs contains the role, so the role changes first.
            await self._order(f"cells/{from_cell}/pool", PoolOrder(instance, as_pool))
        body = await self._order("migrate", MigrateOrder(instance, from_cell, to_cell))
        return _decoded(body, dict[str, float], "migrate").get("seconds", 0.0)

    async def _get(self, path: str, kind: type[_T]) -> _T:
        return _decoded(await self._call("GET", path, self._timeouts.report_s), kind, path)

    async def _order(self, path: str, order: msgspec.Struct) -> bytes:
        return await self._call("POST", path, self._timeouts.order_s, order)

    async def _call(
        self, method: str, path: str, timeout_s: float, order: msgspec.Struct | None = None
    ) -> bytes:
        url, headers = f"{self._base}/{path}", self._authorization()
        return await _call(self._http, method, url, headers, timeout_s, self._tls, order)


@asynccontextmanager
async def local_client(endpoint: str, token: str) -> AsyncIterator[AdminClient]:
    """Open a client for a deployment on this machine; it sends the admin token itself."""
    async with aiohttp.ClientSession() as http:
        yield AdminClient(http, endpoint, lambda: bearer(token), timeouts=LOCAL_TIMEOUTS)


def access(ring: KeyRing, audience: Audience) -> dict[str, str]:
    """Return headers with a new access token; no key is sent."""
    return bearer(new_token(ring, audience))


def admin_access(ring: KeyRing) -> Callable[[], dict[str, str]]:
    """Return an ``authorization`` that signs with the ring's keys for ADMIN."""
    return lambda: access(ring, Audience(Purpose.ADMIN))


async def identity(
    http: aiohttp.ClientSession,
    address: str,
    name: str,
    ring: KeyRing,
    tls: TlsPeer | None = None,
) -> InstanceIdentity:
    """Return the identity of the named instance at a base URL. Raises AdminError."""
    headers = access(ring, Audience(Purpose.CONTROL, name))
    body = await _call(http, "GET", address + IDENTITY_PATH, headers, Timeouts().report_s, tls)
    return _decoded(body, InstanceIdentity, "identity")


async def _call(
    http: aiohttp.ClientSession,
    method: str,
    url: str,
    headers: dict[str, str],
    timeout_s: float,
    tls: TlsPeer | None,
    order: msgspec.Struct | None = None,
) -> bytes:
    options: dict[str, Any] = {"ssl": tls.context, "server_hostname": tls.name} if tls else {}
    with _translated_errors(url):
        async with http.request(
            method,
            url,
            headers=headers,
            data=None if order is None else msgspec.json.encode(order),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            **options,
        ) as response:
            body = await response.read()
    if response.status == HTTPStatus.UNAUTHORIZED:
        raise UnauthorizedError(f"{url} refuses the token.")
    if response.status != HTTPStatus.OK:
        cause = body.decode(errors="replace")[:MAX_CAUSE_CHARS]
        raise AdminError(f"{url} returned HTTP {response.status}: {cause}")
    return body


def _decoded(body: bytes, kind: type[_T], what: str) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise AdminError(f"The response to {what} is invalid: {error}.") from error


@contextmanager
def _translated_errors(url: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise AdminError(f"{url} does not answer in time.") from error
    except aiohttp.ClientError as error:
        raise AdminError(f"{url} does not answer: {error}.") from error
