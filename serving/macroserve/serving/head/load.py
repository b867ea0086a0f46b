"""The recent load of a whole deployment."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
import msgspec

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.core.scaling.load import LoadReport
from macroserve.core.scaling.load_recorder import aged, total
from macroserve.serving.admin import ANSWER_TIMEOUT
from macroserve.serving.security.calls import to


class DeploymentLoad:
    """The summed load of all cells, deleted ones included.

    discover: returns the base URLs of the cell schedulers, by cell.
    http: a session of ``calls.session``.
    """

    def __init__(
        self,
        discover: Callable[[], Awaitable[Mapping[str, str]]],
        http: aiohttp.ClientSession,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._discover = discover
        self._http = http
        self._clock = clock
        self._past: list[tuple[float, LoadReport]] = []
        self._chance = random.Random()

    async def report(self) -> LoadReport:
        """Return the sum over the cells that answer and the deleted ones."""
        now = self._clock()
        past = [aged(report, now - since) for since, report in self._past]
        self._past = [kept for kept, report in zip(self._past, past, strict=True) if report.buckets]
        cells = (await self._discover()).items()
        present = await asyncio.gather(*(self._ask(cell, url) for cell, url in cells))
        return total([*filter(None, present), *past], self._chance)

    async def remember(self, cell: str) -> None:
        """Keep the load of a cell that is about to be deleted: the others get its requests."""
        if (url := (await self._discover()).get(cell)) and (report := await self._ask(cell, url)):
            self._past.append((self._clock(), report))

    async def _ask(self, cell: str, url: str) -> LoadReport | None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
            async with self._http.get(
                url + "/load", headers=to(Audience(Purpose.ORDERS, cell)), timeout=ANSWER_TIMEOUT
            ) as response:
                response.raise_for_status()
                return msgspec.json.decode(await response.read(), type=LoadReport)
        return None
