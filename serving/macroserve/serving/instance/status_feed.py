"""The status stream of an instance."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from macroserve.api import messages
from macroserve.engine.status import decode


class StatusFeed:
    """A stream of statuses for one reader at a time; a new reader replaces the old one."""

    def __init__(self) -> None:
        self._latest: bytes | None = None
        # A reader this far behind misses the oldest. The newest contains everything except the
        # admitted ids, which time out in the cell's ledger.
        self._unread: deque[bytes] = deque(maxlen=256)
        self._changed = asyncio.Event()
        self._reader = 0

    def publish(self, status: bytes) -> None:
        self._latest = status
        self._unread.append(status)
        self._changed.set()

    @property
    def idle(self) -> bool:
        """Return whether the latest status shows no request."""
        status = decode(self._latest) if self._latest else None
        return status is None or not (status.num_running + status.num_waiting)

    def close(self) -> None:
        """End the current reader's stream."""
        self._reader += 1
        self._changed.set()

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the latest status, then each new one or, after a second without, the same again, as
        JSON lines."""
        self._reader = me = self._reader + 1
        self._changed.set()
        while self._reader == me:
            lines = [*self._unread] or [self._latest or b""]
            self._unread.clear()
            self._changed.clear()
            yield b"".join(line + b"\n" for line in lines)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(messages.HEARTBEAT_S):
                    await self._changed.wait()
