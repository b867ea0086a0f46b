"""Messages between an instance's control and server processes: JSON lines over a socket pair."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import msgspec

from macroserve.engine.engine import EngineShape

MAX_LINE_BYTES = 1 << 20

T = TypeVar("T")


class Order(msgspec.Struct, frozen=True, tag="order"):
    """A command for ``token_server.TokenServer.command``."""

    number: int
    verb: str
    argument: str | bool | None = None


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Request to end the server process cleanly."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """Report that the server listens at ``address``."""

    address: str
    shape: EngineShape


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Report that the server cannot start."""

    kind: str
    """Name of the exception."""
    message: str


class ServerBeat(msgspec.Struct, frozen=True, tag="beat"):
    """Heartbeat of the server's event loop."""

    num_unfinished: int
    """Requests in the engine."""
    fault: str | None = None
    """Reason why it can no longer serve."""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """Answer to the order with the same number."""

    number: int
    result: Any = None
    error: str | None = None
    """Reason why the order failed."""


ToServer = Order | Stop
ToControl = Started | Failed | ServerBeat | Answer

decode_to_server = msgspec.json.Decoder(ToServer).decode
decode_to_control = msgspec.json.Decoder(ToControl).decode


class Channel:
    """One end of the socket pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> "Channel":
        return cls(*await asyncio.open_connection(sock=sock, limit=MAX_LINE_BYTES))

    def send(self, message: msgspec.Struct) -> None:
        """Send a message without waiting; it is lost if the other process no longer reads."""
        self._writer.write(msgspec.json.encode(message) + b"\n")

    async def messages(self, decode: Callable[[bytes], T]) -> AsyncIterator[T]:
        """Yield messages until the other process ends."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await self._reader.readline():
                yield decode(line)

    def close(self) -> None:
        self._writer.close()
