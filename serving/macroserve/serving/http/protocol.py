"""Limits on each HTTP/1.1 connection in bytes and seconds, enforced before a request is read.

uvicorn has neither: a head may have any size and take any time, and an idle socket is never closed.
A connection that exceeds a limit gets one error in OpenAI's shape and is closed.
"""

import asyncio
import fcntl
import sys
import termios
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from macroserve.serving.http.errors import error_response


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits of one HTTP server."""

    max_connections: int = 8192
    """Connections at a time; a further one gets 503."""
    max_head_bytes: int = 64 << 10
    """Bytes of a request line and its headers, and of trailers and chunk extensions."""
    max_headers: int = 100
    max_pending_bytes: int = 64 << 20
    """Bytes of unfinished heads of all connections together."""
    head_timeout_s: float = 10.0
    """Time from the connection, or the first byte of a later request, to the last header."""
    linger_s: float = 5.0
    """Time for which the body of a refused request is read and dropped before closing."""
    write_timeout_s: float = 60.0
    """Time in which a client must read MIN_TAKEN_BYTES, or all that waits for it."""


MIN_TAKEN_BYTES = 16 << 10
"""270 bytes a second, less than tokens take; a client that reads nothing would keep its request
running on an instance."""


@dataclass(slots=True)
class PendingBytes:
    """Bytes of unfinished heads of all connections of one server."""

    total: int = 0


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol within limits; ``bounded_protocol`` sets the attributes for a server."""

    limits: HttpLimits
    pending: PendingBytes

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._num_pending = 0
        self._progress = False
        self._in_head = False
        self._in_body = False
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._num_untaken = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, "too many connections")
        else:
            self._close_after(self.limits.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._count(0)
        self._cancel_deadline()
        self._cancel_write_deadline()
        super().connection_lost(exc)
        # The timer keeps the connection and its buffers alive until it fires.
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._progress = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        self._count(0 if self._progress else self._num_pending + len(data))
        if self._num_pending > self.limits.max_head_bytes:
            self._refuse(431, self._too_large)
        elif self._num_pending and self.pending.total > self.limits.max_pending_bytes:
            self._refuse(503, "too many unfinished requests")
        elif self._deadline is None and not self._in_body and not self._responds:
            # Bytes after the last request have stopped the keep-alive timer.
            self._close_after(self.limits.head_timeout_s)

    # -- the parser's callbacks

    def on_message_begin(self) -> None:
        self._in_head, self._in_body = True, False
        super().on_message_begin()
        if self._deadline is None:
            self._close_after(self.limits.head_timeout_s)

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers arrive after the check of the head, and are not used.
        if self._in_head and len(self.headers) <= self.limits.max_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._progress = False, True, True
        self._cancel_deadline()
        num_bytes = len(self.url) + sum(len(k) + len(v) + 4 for k, v in self.headers)
        if num_bytes > self.limits.max_head_bytes or len(self.headers) > self.limits.max_headers:
            self._refuse(431, self._too_large)
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._progress = False, True
        self._cancel_deadline()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._watch_rest()
        super().on_response_complete()
        if self._in_body and not self.transport.is_closing():
            self._close_after(self.limits.linger_s)

    # -- slow readers

    def pause_writing(self) -> None:
        """Pause the response while the transport's buffer is full."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        self._cancel_write_deadline()
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits()
        super().resume_writing()

    def _watch_rest(self) -> None:
        """Bound the time for the rest of a response, which a closing connection still sends."""
        if self.transport.get_write_buffer_size():
            self.transport.set_write_buffer_limits(high=0)

    def _await_reader(self) -> None:
        self._cancel_write_deadline()
        self._num_untaken = self._untaken()
        self._write_deadline = self.loop.call_later(self.limits.write_timeout_s, self._look_again)

    def _look_again(self) -> None:
        """Abort the connection if its client has read too little."""
        if self._untaken() > self._num_untaken - MIN_TAKEN_BYTES:
            self.transport.abort()
        else:
            self._await_reader()

    def _untaken(self) -> int:
        """Return the bytes that the client has not acknowledged, in the transport and the kernel:
        the kernel takes more from the transport only when a third of its megabytes is gone."""
        queued = fcntl.ioctl(self.transport.get_extra_info("socket"), termios.TIOCOUTQ, bytes(4))
        return self.transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)

    def _cancel_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    # -- ends

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            self._refuse(400, "the request is not valid HTTP")

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: clients could fill the log, and the request is answered anyway."""

    def _refuse(self, status: int, message: str) -> None:
        """Send an error and close; close only, if another response is being sent."""
        if not (self._responds and self.cycle.response_started):
            self.transport.write(_bytes(error_response(status, message)))
        self._watch_rest()
        self.transport.close()

    @property
    def _too_large(self) -> str:
        limits = self.limits
        return f"more than {limits.max_head_bytes} bytes or {limits.max_headers} headers"

    @property
    def _responds(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _count(self, num_pending: int) -> None:
        self.pending.total += num_pending - self._num_pending
        self._num_pending = num_pending

    def _close_after(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, self._expired)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expired(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self._responds:
            # The head of a pipelined request, or a stray line end, waits for the response's end.
            self._close_after(self.limits.head_timeout_s)
        elif self._in_head:
            self._refuse(408, "the headers of the request did not arrive in time")
        else:
            self.transport.close()


def bounded_protocol(limits: HttpLimits) -> type[BoundedProtocol]:
    return type("Protocol", (BoundedProtocol,), {"limits": limits, "pending": PendingBytes()})


def _bytes(response: Response) -> bytes:
    headers = [*response.raw_headers, (b"connection", b"close")]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[response.status_code] + lines + b"\r\n" + bytes(response.body)
