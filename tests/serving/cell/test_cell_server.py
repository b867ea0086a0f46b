"""A cell's server sends summaries to each ingress."""

import asyncio
import contextlib

import pytest
from support.keys import live

from macroserve.api import messages
from macroserve.api.access_token import Audience, new_token
from macroserve.api.auth import bearer
from macroserve.api.keys import Purpose
from macroserve.core.request import Slo
from macroserve.core.strategies import strategy
from macroserve.serving.cell.scheduler import CellScheduler
from macroserve.serving.cell.server import INGRESS_PATH, CellServer

HOST = "127.0.0.1"
LARGE = 3 * 2**20
"""Bytes of an address that make each summary larger than what a few socket buffers hold."""


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a WebSocket that only the test reads."""
    reader, writer = await asyncio.open_connection(HOST, int(url.rpartition(":")[2]), limit=2**12)
    token = bearer(new_token(live().ring, Audience(Purpose.ROUTING, "cell-0")))
    headers = {
        "Host": HOST,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
        **token,
    }
    lines = [f"GET {INGRESS_PATH} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    assert b"101" in (await reader.readuntil(b"\r\n\r\n")).splitlines()[0]
    return reader, writer


def frame(payload: bytes) -> bytes:
    """Return a binary frame, masked by zeros, that is longer than 64 KiB."""
    return b"\x82\xff" + len(payload).to_bytes(8, "big") + bytes(4) + payload


async def test_ingress_that_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("macroserve.serving.cell.server.SEND_TIMEOUT_S", 0.2)
    scheduler = CellScheduler("cell-0", strategy("vllm"), Slo(1.0, 0.1), live())
    server = CellServer(scheduler, live(), HOST)
    reader, writer = await connect(await server.start())
    try:
        writer.write(frame(messages.encode(messages.Hello("a" * LARGE))))
        async with asyncio.timeout(30):
            while server.num_ingresses:
                scheduler.changed.set()
                await asyncio.sleep(0.05)
        # Much sooner than by a heartbeat without an answer.
        async with asyncio.timeout(2):
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(2**20):
                    pass
    finally:
        writer.close()
        await server.stop()
        await scheduler.stop()
