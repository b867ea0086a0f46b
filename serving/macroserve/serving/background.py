"""Background tasks of a server."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from macroserve.serving.causes import cause_of


class BackgroundTasks:
    """Tasks whose failure is a fault of their server: its watcher (a probe, Ray Serve, the pod's
    own loop) then ends the process."""

    def __init__(self) -> None:
        self._endless: list[asyncio.Task[None]] = []
        self._finite: list[asyncio.Task[None]] = []

    def start(self, name: str, coroutine: Coroutine[Any, Any, None], may_end: bool = False) -> None:
        """Start a task. Its end counts as a fault even without an error, unless it ``may_end``."""
        task = asyncio.create_task(coroutine, name=name)
        (self._finite if may_end else self._endless).append(task)

    @property
    def fault(self) -> str | None:
        """Return which task has ended or failed and why; None while all are running."""
        for task in (*self._endless, *self._finite):
            if not task.done() or task.cancelled():
                continue
            if error := task.exception():
                return f"background task failed ({task.get_name()}): {cause_of(error)}"
            if task in self._endless:
                return f"background task ended ({task.get_name()})"
        return None

    def check(self) -> None:
        """Raise RuntimeError when there is a fault."""
        if fault := self.fault:
            raise RuntimeError(fault)

    def cancel(self) -> None:
        """Cancel the tasks without waiting for their ends."""
        for task in (*self._endless, *self._finite):
            task.cancel()

    async def stop(self) -> None:
        """Cancel the tasks and wait for their ends."""
        self.cancel()
        await asyncio.gather(*self._endless, *self._finite, return_exceptions=True)
        self._endless.clear()
        self._finite.clear()
