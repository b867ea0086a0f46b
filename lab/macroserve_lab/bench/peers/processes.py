"""Processes of one deployment, started and ended together."""

import asyncio
import ctypes
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp

from macroserve.engine.exits import PR_SET_PDEATHSIG, ended
from macroserve.local.process_tree import adopt_orphans, end_descendants
from macroserve_lab.bench.peers.usage import Usage

START_TIMEOUT_S = 600.0
"""Seconds for all of a deployment to start: three engines share the cores."""
STOP_TIMEOUT_S = 20.0
"""Time for a clean stop, before every process is killed."""
POLL_S = 0.2
TAIL_LINES = 5
_ANSWER_TIMEOUT = aiohttp.ClientTimeout(total=5)


class PeerError(Exception):
    """A deployment that does not start or stop; the message is for users."""


class Processes:
    """The processes of one deployment, descendants of this process.

    folder: for logs and other files of the deployment.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a process whose output goes to ``NAME.log`` in the folder."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self._started[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for this process, which stops the others
                preexec_fn=_end_with_parent,
            )

    async def until(self, what: str, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Wait until a condition holds. Raises PeerError if a process ends, or after
        ``START_TIMEOUT_S``."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await is_so():
                    self.check()
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            names = ", ".join(self._started)
            raise PeerError(
                f"{what} did not come within {START_TIMEOUT_S:.0f} s ({names})"
            ) from None

    async def answers(self, url: str) -> None:
        """Wait until a URL answers 200; raises as ``until``."""
        await self.until(url, lambda: _answers(url))

    def check(self) -> None:
        """Raise PeerError with the end of the log of a process that has ended."""
        for name, process in self._started.items():
            if (code := process.poll()) is not None:
                raise PeerError(f"{name} {ended(code)}: {self._tail(name)}")

    def usage(self) -> Usage:
        return Usage.below(os.getpid())

    async def stop(self) -> None:
        """End every descendant process, and kill those that do not end in time."""
        for process in self._started.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        waits = (asyncio.to_thread(_wait, process) for process in self._started.values())
        await asyncio.gather(*waits)
        if left := await asyncio.to_thread(end_descendants):
            raise PeerError(f"processes {', '.join(map(str, sorted(left)))} do not end")

    def _tail(self, name: str) -> str:
        text = (self.folder / f"{name}.log").read_text(errors="replace")
        return " / ".join(text.strip().splitlines()[-TAIL_LINES:]) or "it has written nothing"


@asynccontextmanager
async def processes(folder: Path) -> AsyncIterator[Processes]:
    """Hold the processes of one deployment, and end them all when left."""
    adopt_orphans()
    started = Processes(folder)
    try:
        yield started
    finally:
        stopping = asyncio.ensure_future(started.stop())
        while not stopping.done():
            with suppress(asyncio.CancelledError):  # a second signal must leave no engine behind
                await asyncio.shield(stopping)
        stopping.result()


async def json_of(url: str) -> object:
    """Return the JSON answer of a URL; None without an answer."""
    try:
        async with aiohttp.ClientSession(timeout=_ANSWER_TIMEOUT) as http, http.get(url) as answer:
            return await answer.json() if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None


async def _answers(url: str) -> bool:
    try:
        async with aiohttp.ClientSession(timeout=_ANSWER_TIMEOUT) as http, http.get(url) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _wait(process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)


def _end_with_parent() -> None:
    """Let the kernel terminate the process when the benchmark is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
