"""The relay that acts as a network with packet loss."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from macroserve_lab.bench.hostile.lossy import LossyPath, lossy_path


@pytest.fixture
async def path() -> AsyncIterator[LossyPath]:
    """Return a lossy path in front of an echo server."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with lossy_path(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as path:
        yield path
    server.close()


@contextlib.asynccontextmanager
async def connected(path: LossyPath):
    address = urlsplit(path.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    yield reader, writer
    writer.close()


async def test_path_that_carries_returns_the_echo(path: LossyPath) -> None:
    async with connected(path) as (reader, writer):
        writer.write(b"hello")
        assert await asyncio.wait_for(reader.readexactly(5), 5) == b"hello"


async def test_path_that_is_lost_accepts_and_carries_nothing(path: LossyPath) -> None:
    path.lost = True
    async with connected(path) as (reader, writer):
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(5), 0.2)
        assert not reader.at_eof()
