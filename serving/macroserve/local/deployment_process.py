"""Hold and restart the process that runs the deployment of ``macroserve up``."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

from macroserve.core.scaling.fleet import DesiredFleet
from macroserve.engine.exits import ended
from macroserve.local.messages import Event, Failed, Setup
from macroserve.local.process_tree import adopt_orphans, end_descendants, reap_orphans

STOP_TIMEOUT_S = 10.0
"""Seconds for the process to end Ray in order, before all its descendants are killed."""
REAP_S = 1.0


class DeploymentProcess:
    """The deployment process runs the deployment apart from ``macroserve up``.

    on_event: called with a sentence for each event.
    """

    def __init__(self, on_event: Callable[[str], None]) -> None:
        self._on_event = on_event
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._reason: str | None = None

    async def run(self, setup: Setup) -> str:
        """Run the process until it ends, and return the reason as a sentence. All descendants have
        ended when this method returns or is cancelled."""
        self._reason = None
        adopt_orphans()
        self._connection = self._spawn()
        try:
            self._connection.send(setup)
            await self._closed(self._connection)
            return self._reason or await self._death()
        finally:
            try:
                await self._end()
            finally:
                # Whatever cuts the wait short.
                end_descendants()
                self._connection.close()
                self._connection = None

    def change(self, desired: DesiredFleet) -> None:
        """Send the desired fleet to the process; the next process gets it at its start."""
        if self._connection is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._connection.send(desired)

    def end(self, reason: str) -> None:
        """End the process with a reason, which ``run`` returns."""
        if self._process is not None:
            self._reason = reason
            self._process.terminate()

    def _spawn(self) -> Connection:
        """Start the process, and return our end of the socket pair.

        The kernel ends the process with the thread that starts it, so a thread that lasts starts
        it: the event loop's.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "macroserve.local.deployment", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        return Connection(ours.detach())

    async def _closed(self, connection: Connection) -> None:
        """Take the process's messages until the process closes its socket."""
        assert self._process is not None
        loop = asyncio.get_running_loop()
        closed = asyncio.Event()

        def read() -> None:
            try:
                match connection.recv():
                    case Event(text=text):
                        self._on_event(text)
                    case Failed(reason=reason):
                        self._reason = reason
            except (EOFError, OSError):
                loop.remove_reader(connection.fileno())
                closed.set()

        loop.add_reader(connection.fileno(), read)
        try:
            while not closed.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REAP_S):
                        await closed.wait()
                reap_orphans(keep=self._process.pid)
        finally:
            loop.remove_reader(connection.fileno())

    async def _death(self) -> str:
        assert self._process is not None
        code = await asyncio.to_thread(self._process.wait, STOP_TIMEOUT_S)
        return f"The process that runs Ray {ended(code)}."

    async def _end(self) -> None:
        assert self._process is not None
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, STOP_TIMEOUT_S)
