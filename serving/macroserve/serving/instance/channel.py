"""Messages between an instance's control process and its server process: JSON lines over a socket
pair."""

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
    """See ``token_server.TokenServer.command``."""

    number: int
    verb: str
    argument: str | bool | None = None


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End the server process in order."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The server listens at ``address``."""

    pid: int
    address: str
    shape: EngineShape


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The server does not start.

    kind: name of the exception.
    """

    kind: str
    message: str


class ServerBeat(msgspec.Struct, frozen=True, tag="beat"):
    """The server's loop turns."""

    num_unfinished: int
    """Requests in the engine."""
    fault: str | None = None
    """Reason why it can serve no more."""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The server answers the order with the same number.

    error: reason why the order was not carried out.
    """

    number: int
    result: Any = None
    error: str | None = None


ToServer = Order | Stop
ToControl = Started | Failed | ServerBeat | Answer

decode_to_server = msgspec.json.Decoder(ToServer).decode
decode_to_control = msgspec.json.Decoder(ToControl).decode


class Channel:
    """The channel is one end of the socket pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> "Channel":
        return cls(*await asyncio.open_connection(sock=sock, limit=MAX_LINE_BYTES))

    def send(self, message: msgspec.Struct) -> None:
        """Send a message without waiting; it is lost if the other end no longer reads."""
        self._writer.write(msgspec.json.encode(message) + b"\n")

    async def messages(self, decode: Callable[[bytes], T]) -> AsyncIterator[T]:
        """Yield messages until the other end is gone."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await self._reader.readline():
                yield decode(line)

    def close(self) -> None:
        self._writer.close()
