"""The connection from a cell scheduler to one instance."""

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
"""Silence after which an instance counts as dead."""
RETRIES = 5
RETRY_DELAY_S = 0.2


class InstanceConnection:
    """The status stream of one instance, and its commands.

    After each connect, statuses are ignored until the instance has finished an iteration, of its
    work or of a probe: an instance whose engine hangs still answers, but never counts as back.

    http: a session of ``calls.session``.
    on_silent: called when the stream broke, before a new attempt.
    on_lost: called once when the last attempt has failed.
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
        """Permission sent last; None before the first one."""
        self._audience = Audience(Purpose.CONTROL, handle.name)
        self._cell = cell
        self._http = http
        self._on_status = on_status
        self._on_silent = on_silent
        self._on_lost = on_lost
        self._joined = asyncio.Event()
        self._tasks = BackgroundTasks()
        self._tasks.start(f"status of {handle.name}", self._follow())

    async def joined(self, timeout_s: float) -> bool:
        """Wait for the first status; return whether it came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._joined.wait()
        return self._joined.is_set()

    async def command(self, verb: str, argument: str | bool | None = None) -> Any:
        """Send the engine a command and return its result. Raises aiohttp.ClientError or
        TimeoutError if the instance does not accept it."""
        body = messages.encode(messages.CommandOrder(verb, argument))
        url = self.handle.control + messages.COMMAND_PATH
        timeout = aiohttp.ClientTimeout(total=10)
        headers = to(self._audience)
        async with self._http.post(url, data=body, timeout=timeout, headers=headers) as response:
            response.raise_for_status()
            return (await response.json())["result"]

    def check(self) -> None:
        """Raise RuntimeError when the status stream is no longer read."""
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
            # The next connection may reach a new process, which has no permission yet.
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
        """Yield the statuses from the first one that shows a finished iteration."""
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
