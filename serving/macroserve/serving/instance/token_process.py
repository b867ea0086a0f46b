"""An instance's server process, and the handle by which the control process starts and stops it.

Started as ``python -m macroserve.serving.instance.token_process FD``, where FD is the process's end
of a socket pair. It leads a process group with all processes of the engine, so that they can be
killed together.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, TypeVar, assert_never

import msgspec
import uvloop

from macroserve.api.logs import get_logger
from macroserve.api.option_names import in_manifest_words
from macroserve.engine.exits import die_with_parent, ended, name_thread, num_oom_kills
from macroserve.serving import logs
from macroserve.serving.background import BackgroundTasks
from macroserve.serving.heap import freeze
from macroserve.serving.instance.channel import (
    Answer,
    Channel,
    Failed,
    Order,
    ServerBeat,
    Started,
    Stop,
    decode_to_control,
    decode_to_server,
)
from macroserve.serving.instance.token_server import STOP_GRACE_S, TokenServer, TokenServerOptions

T = TypeVar("T")

END_TIMEOUT_S = STOP_GRACE_S + 10
"""Time for an engine to stop before it is killed."""
KILL_TIMEOUT_S = 2.0

log = get_logger(__name__)


class StartError(Exception):
    """The server process did not start.

    kind: name of the exception in the server process.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Setup(msgspec.Struct, frozen=True):
    """First line from the control process."""

    options: TokenServerOptions
    status_path: str | None


class TokenProcess:
    """A TokenServer in a separate process, with the same methods."""

    def __init__(self, options: TokenServerOptions) -> None:
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._reading = BackgroundTasks()
        self._started: asyncio.Future[Started] | None = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._told_fault: str | None = None
        self._oom_kills = num_oom_kills()

    async def start(
        self, status_path: str | None, on_beat: Callable[[ServerBeat], None]
    ) -> Started:
        """Start the process. Raises StartError with the cause if the start fails."""
        self._channel = await Channel.over(self._spawn())
        self._channel.send(Setup(self._options, status_path))
        self._started = asyncio.get_running_loop().create_future()
        reading = self._read(self._channel, on_beat)
        self._reading.start("messages of the server process", reading, may_end=True)
        try:
            return await self._started
        except BaseException:
            self.kill()
            raise

    @property
    def fault(self) -> str | None:
        return self._death() or self._told_fault or self._reading.fault

    async def command(self, verb: str, argument: Any = None) -> Any:
        """Run a command in the process. Raises ValueError with the reason if it fails."""
        assert self._channel is not None
        if self._death():
            raise ValueError("the instance has ended")
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        self._channel.send(Order(number, verb, argument))
        try:
            return await self._answers[number]
        finally:
            del self._answers[number]

    async def stop(self) -> None:
        if self._channel is None or self._process is None:
            return
        self._channel.send(Stop())
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, END_TIMEOUT_S)
        self.kill()

    def _spawn(self) -> socket.socket:
        """Start the process; return this end of the socket pair. This must run in the event loop's
        thread, as the kernel kills the process when the thread that started it ends."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        return ours

    def kill(self) -> None:
        """Kill the process and all its descendants."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # A process that hangs in a driver may outlive the kill.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_TIMEOUT_S)
        self._reading.cancel()
        if self._channel is not None:
            self._channel.close()

    def _death(self) -> str | None:
        code = self._process.poll() if self._process is not None else None
        if code is None:
            return None
        if code == -signal.SIGKILL and num_oom_kills() > self._oom_kills:
            return "its server's process was killed by the kernel for lack of memory"
        return f"its server's process {ended(code)}"

    async def _read(self, channel: Channel, on_beat: Callable[[ServerBeat], None]) -> None:
        assert self._process is not None and self._started is not None
        async for message in channel.messages(decode_to_control):
            match message:
                case Started():
                    self._started.set_result(message)
                case Failed(kind=kind, message=text):
                    self._started.set_exception(StartError(kind, text))
                case ServerBeat():
                    self._told_fault = message.fault
                    on_beat(message)
                case Answer(number=number, result=result, error=error):
                    if (future := self._answers.get(number)) and not future.done():
                        if error is None:
                            future.set_result(result)
                        else:
                            future.set_exception(ValueError(error))
                case _:
                    assert_never(message)
        await asyncio.to_thread(self._process.wait)
        if not self._started.done():
            self._started.set_exception(StartError("RuntimeError", self._death() or ""))
        for future in self._answers.values():
            if not future.done():
                future.set_exception(ValueError("the instance has ended"))


# -- inside the server process


class MainThread(Executor):
    """An executor in the process's main thread, where vLLM runs an engine and some of its code has
    to run; the event loop is in another."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future = Future[T]()

        def call() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(call)
        return future

    def run(self) -> None:
        """Run calls until ``shutdown``."""
        while (call := self._calls.get()) is not None:
            call()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._calls.put(None)


async def _serve(sock: socket.socket, setup: Setup, main_thread: MainThread) -> None:
    channel = await Channel.over(sock)
    try:
        server = TokenServer(setup.options, main_thread)
        started = await server.start(setup.status_path, channel.send)
        freeze()
        channel.send(started)
    except Exception as error:
        # An engine may raise anything; the control process reports it.
        kind = type(error).__name__
        cause = in_manifest_words(str(error))
        if not isinstance(error, ValueError | RuntimeError | OSError):
            cause = f"{kind}: {cause}"
        channel.send(Failed(kind, cause or kind))
        return
    tasks: set[asyncio.Task[None]] = set()
    async for message in channel.messages(decode_to_server):
        if isinstance(message, Stop):
            await server.stop()
            return
        tasks.add(task := asyncio.create_task(_execute(server, channel, message)))
        task.add_done_callback(tasks.discard)


async def _execute(server: TokenServer, channel: Channel, order: Order) -> None:
    try:
        result = await server.command(order.verb, order.argument)
    except Exception as error:
        channel.send(Answer(order.number, error=f"{type(error).__name__}: {error}"))
    else:
        channel.send(Answer(order.number, result))


def _setup(sock: socket.socket) -> Setup:
    """Read the first line from the control process."""
    line = b""
    while not line.endswith(b"\n"):
        line += sock.recv(1)
    return msgspec.json.decode(line, type=Setup)


def main(fd: int) -> None:
    die_with_parent()
    logs.configure()
    # Ctrl-C is for the control process, which then sends Stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=fd)
    setup, main_thread = _setup(sock), MainThread()

    def serve() -> None:
        name_thread("server")
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_serve(sock, setup, main_thread))
            os._exit(0)  # without waiting for threads of the engine
        except BaseException:
            log.exception("server process failed")
            os._exit(1)

    threading.Thread(target=serve, name="server").start()
    main_thread.run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
