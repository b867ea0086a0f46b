"""Start the process of one part (``part``), and follow it to its end."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import IO, Any

from macroserve.api.messages import InstanceIdentity
from macroserve.local.parts import Beat, Failed, Part, Started
from macroserve.serving.logs import FILE_VARIABLE

SILENCE_S = 12.0
"""Seconds without a heartbeat after which a part is killed: a hung ingress replica takes its share
of new connections until then, and no busy one is silent for so long."""
KILLED = "its process was killed or has crashed"
SILENT = "it does not answer"


class PartError(Exception):
    """A part does not start; the message is the end of a sentence."""


class PartProcess:
    """The process of one part runs until it fails or is killed.

    name: name of the part, which its command line has.
    environment: further variables of the process.
    """

    def __init__(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[InstanceIdentity | None] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._silence: asyncio.TimerHandle | None = None
        self._cause = KILLED

    async def start(self, part: Part) -> InstanceIdentity | None:
        """Start the part and return when it serves; an instance tells its identity. Raises
        PartError with the cause when the part does not start."""
        self._connection = self._spawn()
        self._loop.add_reader(self._connection.fileno(), self._read, self._connection)
        try:
            self._connection.send(part)
            return await self._started
        except (BrokenPipeError, ConnectionResetError):
            self.kill()
            raise PartError(KILLED) from None
        except BaseException:
            self.kill()
            raise

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    async def end(self) -> str:
        """Wait until the process has ended; return why, as the end of a sentence."""
        await self._ended.wait()
        return self._cause

    def kill(self) -> None:
        """Kill the process; what it has started ends with it."""
        if self._process is not None:
            self._process.kill()

    def _spawn(self) -> Connection:
        """Start the process, and return our end of the socket pair. The kernel ends the process
        with the thread that starts it, which is the event loop's."""
        ours, theirs = socket.socketpair()
        with theirs, _output() as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "macroserve.local.part", self.name, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self._environment},
            )
        return Connection(ours.detach())

    def _read(self, connection: Connection) -> None:
        try:
            match connection.recv():
                case Started(identity=identity):
                    self._expect_beat()
                    if not self._started.done():
                        self._started.set_result(identity)
                case Beat():
                    self._expect_beat()
                case Failed(cause=cause):
                    self._cause = cause
        except (EOFError, OSError):
            self._take_end(connection)

    def _expect_beat(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        self._silence = self._loop.call_later(SILENCE_S, self._end_silent)

    def _end_silent(self) -> None:
        self._cause = SILENT
        self.kill()

    def _take_end(self, connection: Connection) -> None:
        assert self._process is not None
        self._loop.remove_reader(connection.fileno())
        connection.close()
        if self._silence is not None:
            self._silence.cancel()
        # It has closed its socket only because it ends.
        self._process.kill()
        self._process.wait()
        self._ended.set()
        if not self._started.done():
            self._started.set_exception(PartError(self._cause))
            self._started.exception()  # seen, whether or not anybody waits


def _output() -> contextlib.AbstractContextManager[IO[Any] | int]:
    """Return where a part may print: into the file of the logs, which it tells nobody otherwise."""
    file = os.environ.get(FILE_VARIABLE)
    return open(file, "ab") if file else contextlib.nullcontext(subprocess.DEVNULL)  # noqa: PTH123
