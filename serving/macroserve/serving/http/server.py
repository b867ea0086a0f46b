"""A uvicorn server on bound sockets, inside a process that also does other work."""

import asyncio
import contextlib
import functools
import logging
import resource
import socket
from collections.abc import Iterator
from dataclasses import replace

import uvicorn
from starlette.types import ASGIApp

from macroserve.api.logs import get_logger
from macroserve.serving.http.protocol import HttpLimits, bounded_protocol
from macroserve.serving.security.tls import LiveTls

KEEP_ALIVE_S = 75
DATE_S = 1.0
"""Interval of the ``Date`` header, whose resolution is a second."""
DEFAULT_LIMITS = HttpLimits()
RESERVED_DESCRIPTORS = 512
"""Descriptors for everything except clients' connections, at most half of the limit: a frontend has
about 100 files open, and the private port takes up to 256 connections."""
DESCRIPTORS_PER_CONNECTION = 2
"""The client's connection and the one to its instance."""

log = get_logger(__name__)


def _is_fault(record: logging.LogRecord) -> bool:
    """Return whether a record of uvicorn is of a fault, not of a request that its stop cancels."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


logging.getLogger("uvicorn.error").addFilter(_is_fault)


class HttpServer(uvicorn.Server):
    """An ASGI server.

    grace_s: time for running requests to finish at the stop, seconds.
    limits: connections are also limited by the process's file descriptors.
    tls: None for plain HTTP.
    """

    def __init__(
        self,
        app: ASGIApp,
        grace_s: float,
        limits: HttpLimits = DEFAULT_LIMITS,
        tls: LiveTls | None = None,
    ) -> None:
        self._exiting = asyncio.Event()
        affordable = affordable_connections(limits.max_connections)
        limits = replace(limits, max_connections=affordable)
        super().__init__(
            uvicorn.Config(
                app,
                http=bounded_protocol(limits),
                # No route is a WebSocket, whose protocol does not enforce the limits.
                ws="none",
                # Warnings are about clients' mistakes: clients could fill the log.
                log_level="error",
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=round(grace_s),
                ssl_context_factory=(lambda _, __: tls.server) if tls else None,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    @property
    def should_exit(self) -> bool:
        return self._exiting.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        """Stop the server: uvicorn's and vLLM's handlers set this attribute."""
        if value:
            self._exiting.set()

    async def main_loop(self) -> None:
        """Wait for the stop, updating the ``Date`` header: uvicorn's loop wakes ten times a
        second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._exiting.wait()

    async def start(self, *sockets: socket.socket) -> None:
        """Start the server; it listens on the sockets when this returns."""
        self._serving = asyncio.create_task(self.serve(list(sockets)))
        while not self.started:
            if self._serving.done():
                self._serving.result()
                raise RuntimeError("the HTTP server ended while it started")
            await asyncio.sleep(0.01)

    @property
    def alive(self) -> bool:
        return self._serving is not None and not self._serving.done()

    async def stop(self) -> None:
        self.should_exit = True
        if self._serving is not None:
            await self._serving

    def kill(self) -> None:
        """Stop at once: close the ports and reset all connections."""
        for listener in self.servers:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process, which has more to stop than this server."""
        yield


def bound(host: str, port: int, shared: bool = False) -> socket.socket:
    """Return a bound socket, ``shared`` with other processes that listen there. Raises OSError if
    the address is taken."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((host, port))
    return sock


@functools.cache
def affordable_connections(wanted: int) -> int:
    """Return ``wanted``, or the number that the process's raised limit allows; that is logged once.

    Without descriptors, a server neither accepts connections nor reaches instances nor opens files.
    """
    limit = _raised_limit()
    if limit == resource.RLIM_INFINITY:
        return wanted
    left = limit - min(RESERVED_DESCRIPTORS, limit // 2)
    affordable = max(1, left // DESCRIPTORS_PER_CONNECTION)
    if affordable >= wanted:
        return wanted
    log.warning(
        "connection limit lowered", connections=affordable, wanted=wanted, max_open_files=limit
    )
    return affordable


def _raised_limit() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        # The kernel's maximum (fs.nr_open) may be lower than the hard limit.
        return soft
    return hard
