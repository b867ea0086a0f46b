"""The path of an instance's status: from the engine's process to whoever schedules the instance.

A Unix datagram socket: the engine's loop never waits for its readers, and a datagram that finds
the buffer full is superseded by the next one.
"""

import asyncio
import socket
from collections.abc import Callable

import msgspec

from macroserve.core.views import InstanceStatus

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(InstanceStatus)


def encode(status: InstanceStatus) -> bytes:
    return _encoder.encode(status)


def decode(data: bytes | str) -> InstanceStatus:
    """Raises msgspec.ValidationError or msgspec.DecodeError on anything but a status."""
    return _decoder.decode(data)


class StatusSender:
    """The engine's end."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send(self, status: InstanceStatus) -> bool:
        """Whether the datagram was taken; the caller keeps what must not be lost otherwise."""
        try:
            self._socket.sendto(encode(status), self._path)
        except (BlockingIOError, ConnectionRefusedError, FileNotFoundError):
            return False
        return True


class StatusReceiver(asyncio.DatagramProtocol):
    """The instance server's end; ``on_status`` gets each datagram as it came."""

    def __init__(self, on_status: Callable[[bytes], None]) -> None:
        self._on_status = on_status

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._on_status(data)

    @classmethod
    async def listen(cls, path: str, on_status: Callable[[bytes], None]) -> asyncio.BaseTransport:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.bind(path)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: cls(on_status), sock=sock)
        return transport
