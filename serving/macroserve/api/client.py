"""A caller of the admin API: reports and orders."""

from typing import Any

import aiohttp
import msgspec

from macroserve.api import messages
from macroserve.api.auth import bearer
from macroserve.api.messages import (
    ADMIN_PREFIX,
    AdoptOrder,
    DrainOrder,
    MigrateOrder,
    PoolOrder,
    ReleaseOrder,
    Report,
)
from macroserve.core.status import Pool


class AdminError(Exception):
    """The admin API refused, or did not answer."""


class AdminClient:
    def __init__(self, endpoint: str, token: str) -> None:
        self._base = endpoint + ADMIN_PREFIX
        self._http = aiohttp.ClientSession(
            headers=bearer(token), timeout=aiohttp.ClientTimeout(total=30)
        )

    async def close(self) -> None:
        await self._http.close()

    async def report(self) -> Report:
        return msgspec.json.decode(await self._call("GET", "/report"), type=Report)

    async def adopt(self, cell: str, handle: str) -> None:
        await self._order(cell, "adopt", AdoptOrder(handle))

    async def release(self, cell: str, instance: str) -> str:
        """The signed handle."""
        body = await self._order(cell, "release", ReleaseOrder(instance))
        return msgspec.json.decode(body, type=AdoptOrder).handle

    async def set_pool(self, cell: str, instance: str, pool: Pool) -> None:
        await self._order(cell, "pool", PoolOrder(instance, pool))

    async def drain(self, cell: str, instance: str, draining: bool = True) -> None:
        await self._order(cell, "drain", DrainOrder(instance, draining))

    async def migrate(self, instance: str, source: str, target: str) -> float:
        """Seconds that the move took."""
        order = MigrateOrder(instance, source, target)
        body = await self._call("POST", "/migrate", order)
        return msgspec.json.decode(body, type=dict[str, float])["seconds"]

    async def _order(self, cell: str, order: str, body: Any) -> bytes:
        return await self._call("POST", f"/cells/{cell}/{order}", body)

    async def _call(self, method: str, path: str, body: Any = None) -> bytes:
        data = None if body is None else messages.encode(body)
        try:
            async with self._http.request(method, self._base + path, data=data) as response:
                content = await response.read()
                if response.status != 200:
                    raise AdminError(f"{path}: HTTP {response.status}: {content.decode()[:300]}")
                return content
        except (aiohttp.ClientError, TimeoutError) as error:
            raise AdminError(f"{path}: {error}") from error
