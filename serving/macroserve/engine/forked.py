"""Calls in forked processes, with limits on time and memory that the kernel enforces.

Native code that parses a client's input (grammars, regular expressions) may never return, and a
thread cannot be killed. A server process prepares the shared state once and forks for each call;
the forked process has two timers and a limit on its data. The limit on processor time tells
whether the input is too hard, whatever else the machine does; the longer one on elapsed time also
ends a call that waits for ever. Client and server exchange JSON lines over a socket, which is the
server's standard input.
"""

import asyncio
import base64
import contextlib
import itertools
import os
import resource
import selectors
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

NICENESS = 10
"""Niceness of the server, as running requests have priority over checks of new ones."""

START_S = 60.0
"""Time limit of the server's preparation, seconds."""

ELAPSED_PER_CPU = 8
"""Limit on a call's elapsed time, as a multiple of the limit on its processor time."""


class CallError(Exception):
    """A call without a result."""


class CallTooLongError(CallError):
    """A call that exceeded its limit on processor time, as it would again."""


class CallDiedError(CallError):
    """A call whose process exceeded its memory limit or crashed."""


class CallsBusyError(CallError):
    """A call that found no time to run: too many are waiting, the machine is too busy, or the
    server has ended."""


class _Call(msgspec.Struct):
    id: int
    argument: str


class _Outcome(msgspec.Struct):
    """Outcome of a call, as the server reports it."""

    id: int
    result: str | None
    """Result in base64; None if the process ended without one."""
    signal: int = 0
    """Signal that ended the process, or 0."""


class ForkedCalls:
    """A client that sends calls to a server process.

    command: starts a process that runs ``serve``.
    cpu_s: limit on a call's processor time, as given to the server.
    max_waiting: calls that may wait, none longer than the calls before it may take.
    """

    def __init__(
        self,
        command: list[str],
        cpu_s: float,
        max_running: int = 2,
        max_waiting: int = 16,
    ) -> None:
        self._command = command
        self._cpu_s = cpu_s
        self._elapsed_s = ELAPSED_PER_CPU * cpu_s
        self._turns = asyncio.Semaphore(max_running)
        self._max_accepted = max_running + max_waiting
        self._num_accepted = 0
        rounds = -(-max_waiting // max_running)
        self._max_wait_s = START_S + rounds * self._elapsed_s
        self._starting = asyncio.Lock()
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[_Outcome]] = {}
        self.server: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> None:
        """Start the server, unless it runs; calls wait for its preparation."""
        async with self._starting:
            if self._reader is None or self._reader.done():
                await self._spawn()

    async def _spawn(self) -> None:
        own, its = socket.socketpair()
        with its:
            # nice from the start, as the imports take seconds of a core.
            command = ["nice", "-n", str(NICENESS), *self._command]
            self.server = await asyncio.create_subprocess_exec(*command, stdin=its.fileno())
        reader, self._writer = await asyncio.open_connection(sock=own)
        self._reader = asyncio.create_task(self._read(reader))

    async def stop(self) -> None:
        if self.server is not None:
            with contextlib.suppress(ProcessLookupError):
                self.server.kill()
            await self.server.wait()
        if self._reader is not None and self._writer is not None:
            await self._reader
            self._writer.close()

    async def call(self, argument: bytes) -> bytes:
        """Return the result of a call. Raises CallError without one."""
        if self._num_accepted >= self._max_accepted:
            raise CallsBusyError("too many calls wait for their turn")
        self._num_accepted += 1
        try:
            outcome = await self._in_turn(argument)
        finally:
            self._num_accepted -= 1
        if outcome.result is not None:
            return base64.b64decode(outcome.result)
        if outcome.signal == signal.SIGPROF:
            raise CallTooLongError(f"the call took more than {self._cpu_s:g} s of processor time")
        if outcome.signal == signal.SIGALRM:
            raise CallsBusyError(f"the call did not end within {self._elapsed_s:g} s")
        raise CallDiedError(f"the call's process ended by signal {outcome.signal}")

    async def _in_turn(self, argument: bytes) -> _Outcome:
        try:
            async with asyncio.timeout(self._max_wait_s):
                await self._turns.acquire()
            try:
                async with asyncio.timeout(START_S + self._elapsed_s):
                    return await self._run(argument)
            finally:
                self._turns.release()
        except TimeoutError:
            raise CallsBusyError("no process was free in time") from None

    async def _run(self, argument: bytes) -> _Outcome:
        await self.start()
        assert self._writer is not None
        call = _Call(next(self._ids), base64.b64encode(argument).decode())
        outcome = self._waiting[call.id] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(msgspec.json.encode(call) + b"\n")
            return await outcome
        finally:
            del self._waiting[call.id]

    async def _read(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    outcome = msgspec.json.decode(line, type=_Outcome)
                    waiting = self._waiting.get(outcome.id)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(outcome)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(CallsBusyError("the server of calls has ended"))


# -- server


@dataclass(slots=True)
class _Child:
    call_id: int
    pid: int
    result: bytearray = field(default_factory=bytearray)


def serve(prepare: Callable[[], Callable[[bytes], bytes]], cpu_s: float, memory_bytes: int) -> None:
    """Serve calls until standard input ends.

    prepare: called once; returns the function that each call runs.
    cpu_s: limit on a call's processor time.
    memory_bytes: memory that a call may allocate in addition to the prepared state.
    """
    run = prepare()
    children: dict[int, _Child] = {}
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                if key.fd == 0:
                    if not data:
                        for child in children.values():
                            os.kill(child.pid, signal.SIGKILL)
                        return
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        call = msgspec.json.decode(line, type=_Call)
                        argument = base64.b64decode(call.argument)
                        pid, fd = _fork(run, argument, cpu_s, memory_bytes)
                        children[fd] = _Child(call.id, pid)
                        selector.register(fd, selectors.EVENT_READ)
                elif data:
                    children[key.fd].result += data
                else:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    _write(0, _reaped(children.pop(key.fd)))


def _fork(
    run: Callable[[bytes], bytes], argument: bytes, cpu_s: float, memory_bytes: int
) -> tuple[int, int]:
    """Fork a process for a call; return its process id and the descriptor of its result."""
    result, own = os.pipe()
    if pid := os.fork():
        os.close(own)
        return pid, result
    status = 1
    try:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        signal.setitimer(signal.ITIMER_REAL, ELAPSED_PER_CPU * cpu_s)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        limit = _data_bytes() + memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        _write(own, run(argument))
        status = 0
    finally:
        os._exit(status)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _reaped(child: _Child) -> bytes:
    _, status = os.waitpid(child.pid, 0)
    done = os.waitstatus_to_exitcode(status) == 0
    outcome = _Outcome(
        child.call_id,
        base64.b64encode(child.result).decode() if done else None,
        os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
    )
    return msgspec.json.encode(outcome) + b"\n"


def _data_bytes() -> int:
    with open("/proc/self/status") as lines:  # noqa: PTH123 - do little after a fork
        line = next(line for line in lines if line.startswith("VmData"))
    return int(line.split()[1]) << 10
