"""A cell scheduler's hold on one instance: follows its status for as long as it lives."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec

from macroserve.api import messages
from macroserve.api.access_token import Audience
from macroserve.api.handle import InstanceHandle
from macroserve.api.keys import Purpose
from macroserve.core.status import InstanceStatus
from macroserve.engine.status import decode
from macroserve.serving.background import BackgroundTasks
from macroserve.serving.security.calls import to

SILENCE_S = 5 * messages.HEARTBEAT_S
"""An instance that sends nothing for this long is taken for dead."""
RETRIES = 5
RETRY_DELAY_S = 0.2


class InstanceConnection:
    """The connection reads the instance's status stream.

    An instance that answers is not yet one that works. After every connection its statuses count
    from the first one on by which it has finished an iteration since: of its work, or of the token
    that it is asked for. An instance that hangs in its engine thus never comes back.

    http: a session of ``calls.session``.
    on_status: called with each new status.
    on_silent: called when the stream broke, and may come back.
    on_lost: called once when the instance is gone for good.
    """

    def __init__(
        self,
        handle: InstanceHandle,
        cell: str,
        http: aiohttp.ClientSession,
        on_status: Callable[[InstanceStatus], None],
        on_silent: Callable[[str], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.handle = handle
        self.may_offload: bool | None = None
        """What the instance was told last; None before it was told anything."""
        self._audience = Audience(Purpose.CONTROL, handle.name)
        self._cell = cell
        self._http = http
        self._on_status = on_status
        self._on_silent = on_silent
        self._on_lost = on_lost
        self._joined = asyncio.Event()
        self._tasks = BackgroundTasks()
        self._tasks.start(f"follows {handle.name}", self._follow())

    async def joined(self, timeout_s: float) -> bool:
        """Wait for a status; return whether one came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._joined.wait()
        return self._joined.is_set()

    async def command(self, verb: str, argument: str | bool | None = None) -> Any:
        """Give the engine an order and return its answer. Raises aiohttp.ClientError or
        TimeoutError if the instance does not take the order."""
        body = messages.encode(messages.CommandOrder(verb, argument))
        url = self.handle.control + messages.COMMAND_PATH
        timeout = aiohttp.ClientTimeout(total=10)
        headers = to(self._audience)
        async with self._http.post(url, data=body, timeout=timeout, headers=headers) as response:
            response.raise_for_status()
            return (await response.json())["result"]

    def check(self) -> None:
        """Raise RuntimeError when nothing follows the instance any more."""
        self._tasks.check()

    async def close(self) -> None:
        await self._tasks.stop()

    async def _follow(self) -> None:
        failures = 0
        while failures < RETRIES:
            try:
                async for status in self._proved(self._statuses()):
                    failures = 0
                    self._on_status(status)
                    self._joined.set()
            except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
                pass
            # What comes back may be another process, which was told nothing.
            self.may_offload = None
            self._on_silent(self.handle.name)
            failures += 1
            await asyncio.sleep(RETRY_DELAY_S)
        self._on_lost(self.handle.name)

    async def _statuses(self) -> AsyncIterator[InstanceStatus]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2, sock_read=SILENCE_S)
        async with self._http.get(
            self.handle.control + messages.STATUS_PATH,
            params={"cell": self._cell},
            timeout=timeout,
            headers=to(self._audience),
        ) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.strip():
                    yield decode(line)

    async def _proved(
        self, statuses: AsyncIterator[InstanceStatus]
    ) -> AsyncIterator[InstanceStatus]:
        """Yield the statuses from the first one on after an iteration that ended meanwhile."""
        first = await anext(statuses, None)
        if first is None:
            return
        probe = asyncio.create_task(self._probe())
        try:
            proved = False
            async for status in statuses:
                proved = proved or status.iterations != first.iterations
                if proved:
                    yield status
        finally:
            probe.cancel()

    async def _probe(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            await self.command(messages.PROBE)
