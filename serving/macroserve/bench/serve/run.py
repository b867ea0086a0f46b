"""Runs of a load against an endpoint: a single one, or the probes of a search for goodput."""

import asyncio
import resource
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from macroserve.bench.serve.client import LoadClient, Target
from macroserve.bench.serve.goodput import Goodput
from macroserve.bench.serve.metrics import summarize
from macroserve.bench.serve.payload import Endpoint, PayloadMaker
from macroserve.bench.serve.record import Failure, RequestRecord
from macroserve.bench.serve.result import Result, Run
from macroserve.core.request import Slo
from macroserve.workload.arrivals import Arrival
from macroserve.workload.class_mix import ONE_CLASS, ClassMix
from macroserve.workload.load import Load, LoadLimits, plan

MAX_OPEN_FILES = 65536
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

REFRESHES_PER_S = 2
"""Refreshes of the live view: rare, as drawing takes milliseconds from the client."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Configuration of a session."""

    target: Target
    model: str | None
    """None for the first model that the endpoint lists."""
    endpoint: Endpoint
    vocab_size: int
    load: Load
    limits: LoadLimits
    slo: Slo
    seed: int
    classes: ClassMix = ONE_CLASS

    def planned(self, load: Load) -> list[Arrival]:
        return self.classes.applied(plan(load, self.limits, self.seed), self.seed)


Search = Generator[float, float, Goodput]


async def run_bench(bench: Bench, search: Search | None, console: Console) -> Result:
    """Run the load as it is, or at the intensities that ``search`` yields.

    SIGINT and SIGTERM end the run in progress; the result has the runs so far. Raises EndpointError
    if the endpoint cannot be used at all.
    """
    async with LoadClient(bench.target) as client:
        model = await client.find_model(bench.model)
        allow_open_files()
        with _stop_on_signal() as stop:
            runner = _Runner(bench, client, model, stop, console)
            if search is None:
                return Result(model, (await runner.run(bench.load, number=0),))
            return await _follow(search, runner)


async def _follow(search: Search, runner: "_Runner") -> Result:
    runs: list[Run] = []
    intensity = next(search)
    while True:
        run = await runner.run(runner.bench.load.at(intensity), number=len(runs))
        runs.append(run)
        if runner.stop.is_set() or run.is_unreachable:
            return Result(runner.model, tuple(runs))
        try:
            intensity = search.send(run.summary.attainment or 0.0)
        except StopIteration as end:
            return Result(runner.model, tuple(runs), end.value)


@dataclass(frozen=True, slots=True)
class _Runner:
    bench: Bench
    client: LoadClient
    model: str
    stop: asyncio.Event
    console: Console

    async def run(self, load: Load, number: int) -> Run:
        """Run the load; runs of a session differ in ``number`` and therefore in their prompts."""
        bench = self.bench
        planned = bench.planned(load)
        payloads = PayloadMaker(
            self.model,
            bench.endpoint,
            bench.vocab_size,
            (bench.seed, number),
        )
        num_planned = sum(arrival.num_requests for arrival in planned)
        max_model_len = None
        if num_planned > len(planned):
            max_model_len = await self.client.find_max_model_len(self.model)
        label = f"{load.intensity:.4g} {load.unit}"
        cpu_s, wall_s = time.process_time(), time.monotonic()
        with LiveView(self.console, label, num_planned, bench.slo) as view:
            records = await self.client.run(
                planned, payloads, self.stop, view.on_sent, view.on_done, max_model_len
            )
        cpu = (time.process_time() - cpu_s) / (time.monotonic() - wall_s)
        return Run(load.intensity, num_planned, records, summarize(records, bench.slo), cpu)


class LiveView:
    """Live counts of a run's requests, displayed while the view is entered."""

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


def allow_open_files() -> None:
    """Raise the limit of open files: an open loop may need many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def _stop_on_signal() -> Iterator[asyncio.Event]:
    """Yield an event that the first signal sets; a second signal has its default effect."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def restore() -> None:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)

    def stop_now() -> None:
        stop.set()
        restore()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop_now)
    try:
        yield stop
    finally:
        restore()
