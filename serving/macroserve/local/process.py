"""A child process with one job, which ends with this process.

It runs ``python -m macroserve.local.process NAME FD``, FD being its end of a socket pair, and
receives its job first. Messages are pickled: both ends have one version and one user.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from macroserve.engine.exits import die_with_parent

SILENCE_S = 12.0
"""Time without a heartbeat after which a child is killed, seconds. Until then, a hung ingress
replica takes its share of new connections; a busy one is never silent for this long."""
KILLED = "its process was killed or crashed"
SILENT = "it does not answer"


class Job(Protocol):
    """Work of a child process, as plain data."""

    def run(self, parent: Connection) -> None:
        """Do the job; before a failure, send JobFailed to the parent."""
        ...


@dataclass(frozen=True, slots=True)
class Event:
    """A sentence for users about something that happened."""

    text: str


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The job serves, and sends heartbeats from now on."""

    result: Any


@dataclass(frozen=True, slots=True)
class Beat:
    """Heartbeat of a job that finds no fault in itself."""


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The job cannot start or continue; its process ends next."""

    cause: str


class ProcessError(Exception):
    """An error whose message ends a sentence: why a job did not start."""


class ChildProcess:
    """The parent's side of a child process.

    name: shown on its command line.
    environment: additional variables.
    output: file for the child's output; None for this process's own.
    on_event: called with the text of each Event.
    """

    def __init__(
        self,
        name: str,
        environment: Mapping[str, str] | None = None,
        output: str | None = None,
        on_event: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.name = name
        self.failure: str | None = None
        """Reason for its end, if known."""
        self._environment = environment or {}
        self._output = output
        self._on_event = on_event
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[Any] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._silence: asyncio.TimerHandle | None = None

    def launch(self, job: Job) -> None:
        """Start the process without waiting for the job to start."""
        self._connection = self._spawn()
        self._loop.add_reader(self._connection.fileno(), self._read, self._connection)
        self.send(job)

    async def start(self, job: Job) -> Any:
        """Start the process; return the result of the job's start. Raises ProcessError."""
        try:
            self.launch(job)
            return await self._started
        except BaseException:
            self.kill()
            raise

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int:
        """Return the exit code of an ended process, negative for a signal."""
        return self._popen.returncode

    async def end(self) -> str:
        """Wait for the end of the process; return its cause, as the end of a sentence."""
        await self._ended.wait()
        return self.failure or KILLED

    def send(self, message: object) -> None:
        """Send a message to the job, unless its process has ended."""
        if self._connection is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._connection.send(message)

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill the process; its descendants end with it."""
        if self._process is not None:
            self._process.kill()

    @property
    def _popen(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the process is launched"
        return self._process

    def _spawn(self) -> Connection:
        """Start the process, and return this end of the socket pair.

        The kernel ends the process with its starting thread, the event loop's.
        """
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as stack:
            output = None
            if self._output is not None:
                output = stack.enter_context(open(self._output, "ab"))  # noqa: PTH123
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, self.name, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self._environment},
                process_group=0,  # a terminal's Ctrl-C is only for ``macroserve up``
            )
        return Connection(ours.detach())

    def _read(self, connection: Connection) -> None:
        try:
            match connection.recv():
                case Event(text=text):
                    self._on_event(text)
                case JobStarted(result=result):
                    self._expect_beat()
                    if not self._started.done():
                        self._started.set_result(result)
                case Beat():
                    self._expect_beat()
                case JobFailed(cause=cause):
                    self.failure = cause
        except (EOFError, OSError):
            self._take_end(connection)

    def _expect_beat(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        self._silence = self._loop.call_later(SILENCE_S, self._end_silent)

    def _end_silent(self) -> None:
        self.failure = SILENT
        self.kill()

    def _take_end(self, connection: Connection) -> None:
        self._loop.remove_reader(connection.fileno())
        connection.close()
        self._connection = None
        if self._silence is not None:
            self._silence.cancel()
        # A job closes its socket only by ending.
        self._popen.kill()
        self._popen.wait()
        self._ended.set()
        if not self._started.done():
            self._started.set_exception(ProcessError(self.failure or KILLED))
            self._started.exception()  # retrieved, so that asyncio does not log it


def main(fd: int) -> None:
    """Do the job that comes over a socket."""
    die_with_parent()
    parent = Connection(fd)
    # These errors mean that the parent is gone or no longer needs this process.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        job: Job = parent.recv()
        job.run(parent)
    # Do not wait for the job's threads.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[2]))
