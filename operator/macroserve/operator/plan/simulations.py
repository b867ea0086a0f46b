"""Simulations of MacroInstances' loads, one at a time, in a thread."""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from macroserve.operator import metrics
from macroserve.operator.k8s.names import Key
from macroserve.operator.logs import about

EVERY_S = 15.0
PAUSES = 4.0
"""Shortest pause after a simulation, relative to its duration."""

STALE_S = 120.0
"""Age after which a result is discarded, because the worker is overloaded."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Found(Generic[T]):
    """Last result of a simulation."""

    what: T | None
    """None if the simulation failed."""
    at: float
    next_at: float


class Simulations(Generic[T]):
    """Scheduler and results of simulations, which run one at a time outside the event loop.

    found: called on the event loop when the result for a MacroInstance has changed.
    clock: monotonic clock, seconds.
    """

    def __init__(
        self, found: Callable[[Key], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._notify = found
        self._clock = clock
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="simulation")
        self._found: dict[Key, _Found[T]] = {}
        self._running: dict[Key, asyncio.Task[None]] = {}

    @property
    def running(self) -> Mapping[Key, asyncio.Task[None]]:
        """Return the running and waiting simulations by MacroInstance."""
        return self._running

    def latest(self, key: Key, simulate: Callable[[], T | None]) -> T | None:
        """Return the last result, if any, and start a new simulation when it is due.

        simulate: runs in another thread, so it must not share mutable state.
        """
        now = self._clock()
        found = self._found.get(key)
        if key not in self._running and (found is None or now >= found.next_at):
            self._running[key] = asyncio.create_task(self._run(key, simulate))
        return found.what if found and now - found.at <= STALE_S else None

    def forget(self, key: Key) -> None:
        """Discard the last result and that of a running simulation."""
        self._found.pop(key, None)
        if task := self._running.pop(key, None):
            task.cancel()

    async def stop(self) -> None:
        """Stop waiting for results. A running simulation takes another second or two to end."""
        tasks = list(self._running.values())
        for key in list(self._running):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def _run(self, key: Key, simulate: Callable[[], T | None]) -> None:
        before = self._found.get(key)
        loop = asyncio.get_running_loop()
        what = None
        try:
            what, took_s = await loop.run_in_executor(self._worker, self._timed, simulate)
        except Exception:
            took_s = 0.0
            metrics.ERRORS.labels("simulation").inc()
            about(key, __name__).exception("load simulation failed")
        now = self._clock()
        self._found[key] = _Found(what, now, now + max(EVERY_S, PAUSES * took_s))
        del self._running[key]
        if before is None or before.what != what:
            self._notify(key)

    def _timed(self, simulate: Callable[[], T | None]) -> tuple[T | None, float]:
        began = self._clock()
        what = simulate()
        return what, self._clock() - began
