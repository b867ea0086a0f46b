"""One component in its pod: mounted files, termination, and the reason of a failure."""

import asyncio
import contextlib
import math
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn, Protocol

from macroserve.api.keys import PURPOSES, KeysError, Role
from macroserve.api.logs import get_logger
from macroserve.serving.security.key_source import KeySource, LiveKeys
from macroserve.serving.security.tls import TlsError, TlsSource

log = get_logger(__name__)

TERMINATION_LOG = Path("/dev/termination-log")
"""File whose text Kubernetes shows as the reason for a container's end."""
CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
CHECK_S = 1.0


class PodError(Exception):
    """An error whose message is a sentence for users: a file or option of the pod is unusable."""


class PodServer(Protocol):
    async def start(self) -> object:
        """Start serving. Raises the error that prevents it."""
        ...

    def check(self) -> None:
        """Raise RuntimeError if the component can serve no more."""
        ...

    async def leave(self) -> None:
        """Finish accepted requests, within a limit."""
        ...

    async def stop(self) -> None: ...


async def serve(server: PodServer, component: str, address: str) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish accepted requests.

    component, address: for the log.
    """
    # Until it serves there is nothing to finish, and loading a model blocks the event loop.
    signal.signal(signal.SIGTERM, _end_now)
    await server.start()
    log.info("component started", component=component, address=address)
    await _until_told(server)
    log.info("stop requested", component=component)
    await server.leave()
    await server.stop()


async def _until_told(server: PodServer) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    while not told.is_set():
        server.check()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHECK_S):
                await told.wait()
    # A second Ctrl-C ends the process at once.
    loop.remove_signal_handler(signal.SIGINT)


def _end_now(number: int, frame: object) -> NoReturn:
    sys.exit(0)


def fail(sentence: str, code: int) -> NoReturn:
    """End with the sentence as the last line of stderr and as Kubernetes' termination message."""
    print(f"error: {sentence}", file=sys.stderr, flush=True)
    if TERMINATION_LOG.exists():
        with contextlib.suppress(OSError):
            TERMINATION_LOG.write_text(sentence)
    sys.exit(code)


def read_token(folder: Path, name: str) -> str:
    """Return the token in a file. Raises PodError for a missing or empty file."""
    path = folder / name
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PodError(f"the token file {path} cannot be read: {_why(error)}") from error
    if not token:
        raise PodError(f"the token file {path} is empty")
    return token


class LiveToken:
    """The last usable content of a token's file.

    Raises PodError if the file is unusable at first.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._token = read_token(folder, name)

    def __call__(self) -> str:
        with contextlib.suppress(PodError):
            self._token = read_token(self._folder, self._name)
        return self._token


def key_source(folder: Path, role: Role, tls: TlsSource | None = None) -> KeySource:
    """Return the source of a pod's keys and certificate. Raises PodError if a key is missing."""
    source = KeySource(PURPOSES[role], str(folder), tls=tls)
    try:
        LiveKeys(source)
    except (KeysError, TlsError) as error:
        raise PodError(str(error)) from error
    return source


def use_cpu_limit() -> None:
    """Use the container's number of cores for compute threads, unless the environment sets them."""
    os.environ.setdefault("OMP_NUM_THREADS", str(_num_cpus()))


def _num_cpus() -> int:
    """Return the container's CPU limit (cgroup v2), rounded up, or else the node's cores."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = CGROUP_CPU_MAX.read_text().split()
        return math.ceil(int(quota) / int(period))
    return len(os.sched_getaffinity(0))


def _why(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "it is not text"
