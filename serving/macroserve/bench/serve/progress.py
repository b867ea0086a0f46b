"""Show the live line of a run in progress."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from macroserve.bench.serve.record import Failure, RequestRecord
from macroserve.core.request import Slo

REFRESHES_PER_S = 2
"""Refreshes per second: rare, since drawing takes milliseconds from the client."""


class LiveView:
    """The live view counts requests, and shows the counts while it is entered."""

    def __init__(self, console: Console, label: str, num_planned: int, slo: Slo) -> None:
        self._slo = slo
        self._num_sent = self._num_done = self._num_failed = self._num_attained = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[counts]}"),
            console=console,
            refresh_per_second=REFRESHES_PER_S,
        )
        self._task = self._progress.add_task(label, total=num_planned, counts="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def on_sent(self) -> None:
        self._num_sent += 1
        self._show()

    def on_done(self, record: RequestRecord) -> None:
        if record.failure is Failure.INTERRUPTED:
            return
        self._num_done += 1
        self._num_failed += record.failure is not None
        self._num_attained += record.meets(self._slo)
        self._show()

    def _show(self) -> None:
        counts = (
            f"sent {self._num_sent}  in flight {self._num_sent - self._num_done}"
            f"  done {self._num_done}  failed {self._num_failed}"
        )
        if self._num_done:
            counts += f"  attainment {self._num_attained / self._num_done:.1%}"
        self._progress.update(self._task, completed=self._num_done, counts=counts)
