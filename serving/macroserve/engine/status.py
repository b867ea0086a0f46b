"""Statuses and heartbeats from an instance's engine process to its control process.

They use a Unix datagram socket: the engine's loop never waits for readers, and a datagram lost to a
full buffer is superseded by the next. Each status wakes two further processes, so statuses of short
steps are combined.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from macroserve.core.health import BEAT_S, EngineBeat
from macroserve.core.status import InstanceStatus

MIN_INTERVAL_S = 0.05
"""Interval of statuses without news: short compared to latency targets, long compared to
the 50 us that a status takes in each of three processes."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(InstanceStatus)
_beat_decoder = msgspec.json.Decoder(EngineBeat)
_BEAT_BEGINS = b"["
"""First byte of a heartbeat, a JSON array; a status is a JSON object."""


def encode(status: InstanceStatus) -> bytes:
    return _encoder.encode(status)


def decode(data: bytes | str) -> InstanceStatus:
    """Decode a status. Raises msgspec.ValidationError or msgspec.DecodeError."""
    return _decoder.decode(data)


class StatusSender:
    """The engine process's end of the socket.

    A status without news is sent MIN_INTERVAL_S after the previous one, unless a newer one replaces
    it meanwhile.

    path: path of the receiver's socket, which may be removed afterwards; None without a receiver.
    """

    def __init__(self, path: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._has_receiver = path is not None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        if path is not None:
            self._socket.connect(path)
        self._clock = clock
        self._admitted: tuple[str, ...] = ()
        self._last: InstanceStatus | None = None
        """The latest status, sent or not."""
        self._next_s = 0.0
        """Time of the next status without news."""
        # Between the engine's thread and the one that sends delayed statuses.
        self._lock = threading.Lock()
        self._waits = threading.Event()
        self._sends_late = False

    def is_due(self, within_s: float = 0.0) -> bool:
        """Return whether a status without news would be sent within that time."""
        return self._has_receiver and self._clock() + within_s >= self._next_s

    def send(self, status: InstanceStatus, *, has_news: bool) -> None:
        """Send a status at once or soon. If the buffer is full, the next status has its admitted
        ids."""
        if not self._has_receiver:
            return
        with self._lock:
            self._last = status
            if has_news or self._clock() >= self._next_s:
                self._send_now(status)
            elif not self._waits.is_set():
                self._waits.set()
                if not self._sends_late:
                    self._sends_late = True
                    threading.Thread(target=self._send_late, name="statuses", daemon=True).start()

    def _send_now(self, status: InstanceStatus) -> None:
        self._waits.clear()
        self._next_s = self._clock() + MIN_INTERVAL_S
        if self._admitted:
            admitted = (*self._admitted, *status.admitted)
            status = msgspec.structs.replace(status, admitted=admitted)
        self._admitted = () if self._send(encode(status)) else status.admitted

    def _send_late(self) -> None:
        """Send delayed statuses forever. They do not wait for the next step, which may take
        seconds."""
        while True:
            self._waits.wait()
            time.sleep(max(0.0, self._next_s - self._clock()))
            with self._lock:
                if self._waits.is_set() and self._last is not None:
                    self._send_now(self._last)

    def send_beat(self, beat: EngineBeat) -> None:
        self._send(_encoder.encode(beat))

    def _send(self, data: bytes) -> bool:
        if self._has_receiver:
            try:
                self._socket.send(data)
            except OSError:  # full, or the receiver has ended
                return False
        return True


class Heart:
    """A thread that sends a heartbeat every BEAT_S, even while the engine's thread is blocked.

    num_unfinished: returns the number of requests in the engine.
    """

    def __init__(self, sender: StatusSender, num_unfinished: Callable[[], int]) -> None:
        self._sender = sender
        self._num_unfinished = num_unfinished
        self._progress = 0
        # One tuple, as two threads share it without a lock.
        self._step = (0.0, False)
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="heart", daemon=True).start()

    def begin(self, step_s: float, first: bool = False) -> None:
        """Note the start of an iteration predicted to take ``step_s`` seconds.

        first: see ``EngineBeat``.
        """
        self._step = (step_s, first)
        self._progress += 1

    def end(self) -> None:
        self._progress += 1
        self._step = (0.0, False)

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while True:
            step_s, first = self._step
            unfinished = self._num_unfinished()
            self._sender.send_beat(EngineBeat(self._progress, unfinished, step_s, first))
            if self._stopped.wait(BEAT_S):
                return


class StatusReceiver(asyncio.DatagramProtocol):
    """The control process's end of the socket."""

    def __init__(
        self, on_status: Callable[[bytes], None], on_beat: Callable[[EngineBeat], None]
    ) -> None:
        self._on_status = on_status
        self._on_beat = on_beat

    def datagram_received(self, data: bytes, addr: object) -> None:
        if data.startswith(_BEAT_BEGINS):
            self._on_beat(_beat_decoder.decode(data))
        else:
            self._on_status(data)

    @classmethod
    async def listen(
        cls, path: str, on_status: Callable[[bytes], None], on_beat: Callable[[EngineBeat], None]
    ) -> asyncio.BaseTransport:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.bind(path)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: cls(on_status, on_beat), sock=sock
        )
        return transport
