"""A relay that can lose all packets like a faulty network."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

CHUNK_BYTES = 1 << 16


class LossyPath:
    """A relay in front of one HTTP server.

    url: base URL where the relay listens.
    lost: while true, connections are accepted and stay open, but no data arrives.
    """

    def __init__(self, url: str, target: str) -> None:
        self.url = url
        self.lost = False
        address = urlsplit(target)
        self._target = address.hostname, address.port

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there = await asyncio.open_connection(*self._target)
            try:
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(self._pump(reader, there[1]))
                    pumps.create_task(self._pump(there[0], writer))
            finally:
                there[1].transport.abort()
                writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if not self.lost:
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def lossy_path(target: str) -> AsyncIterator[LossyPath]:
    """Relay to the server at the base URL ``target``, until left."""
    path: LossyPath | None = None

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert path is not None
        await path.relay(reader, writer)

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    path = LossyPath(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", target)
    try:
        yield path
    finally:
        server.close()
