"""Calls in their own processes have limits on time and memory, and leave the server running."""

import asyncio
import base64
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest

from macroserve.engine.forked import CallDiedError, CallsBusyError, CallTooLongError, ForkedCalls

CPU_S = 1.0
PROGRAM = f"""
import os, time
from macroserve.engine.forked import serve

def run(argument):
    if argument == b"spin":
        while True:
            pass
    if argument == b"regex":
        import re
        re.match(r"(a+)+$", "a" * 60 + "b")
    if argument == b"memory":
        return bytes(1 << 30)[:1]
    if argument == b"crash":
        os.abort()
    if argument == b"nap":
        time.sleep(0.5)
    if argument == b"wait":
        time.sleep(1.5)
    if argument == b"hang":
        time.sleep(1000)
    return argument * 2

print("noise on standard output")
serve(lambda: run, {CPU_S}, 256 << 20)
"""


def order(argument: bytes) -> bytes:
    return b'{"id": 0, "argument": "%s"}\n' % base64.b64encode(argument)


@asynccontextmanager
async def started(**options: int) -> AsyncIterator[ForkedCalls]:
    calls = ForkedCalls([sys.executable, "-c", PROGRAM], CPU_S, **options)
    await calls.start()
    try:
        yield calls
    finally:
        await calls.stop()


async def test_call_with_a_large_result_returns_all_of_it() -> None:
    async with started() as calls:
        big = bytes(range(256)) * 2000
        assert await asyncio.gather(calls.call(b"ab"), calls.call(big)) == [b"abab", big * 2]


@pytest.mark.parametrize("argument", [b"spin", b"regex"])
async def test_call_that_runs_away_is_killed_and_the_next_is_served(argument: bytes) -> None:
    async with started() as calls:
        await calls.call(b"x")
        start = time.monotonic()
        with pytest.raises(CallTooLongError, match="1 s"):
            await calls.call(argument)
        assert time.monotonic() - start < 3 * CPU_S
        assert await calls.call(b"x") == b"xx"
        server = calls.server
        assert server is not None
        assert psutil.Process(server.pid).children() == []


async def test_call_on_a_busy_machine_has_its_processor_time() -> None:
    async with started() as calls:
        assert await calls.call(b"wait") == b"waitwait"


async def test_call_that_waits_for_ever_is_killed_and_may_be_tried_again() -> None:
    async with started() as calls:
        with pytest.raises(CallsBusyError, match="within 8 s"):
            await calls.call(b"hang")
        assert await calls.call(b"x") == b"xx"


@pytest.mark.parametrize("argument", [b"memory", b"crash"])
async def test_call_that_dies_leaves_the_server_running(argument: bytes) -> None:
    async with started() as calls:
        with pytest.raises(CallDiedError):
            await calls.call(argument)
        assert await calls.call(b"x") == b"xx"


async def test_calls_beyond_the_waiting_limit_are_refused_at_once() -> None:
    async with started(max_running=1, max_waiting=2) as calls:
        await calls.call(b"x")
        start = time.monotonic()
        naps = [asyncio.create_task(calls.call(b"nap")) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(CallsBusyError):
            await calls.call(b"x")
        assert time.monotonic() - start < 0.4
        assert await asyncio.gather(*naps) == [b"napnap"] * 3
        assert time.monotonic() - start >= 1.5, "more ran at once than may"
        assert await calls.call(b"x") == b"xx"


async def test_calls_that_are_hard_each_time_out_alone() -> None:
    async with started() as calls:
        await calls.call(b"x")
        hard = [calls.call(b"spin") for _ in range(8)]
        found = await asyncio.gather(*hard, return_exceptions=True)
        assert [type(error) for error in found] == [CallTooLongError] * 8


async def test_call_whose_caller_leaves_gives_up_its_turn() -> None:
    async with started(max_running=1, max_waiting=1) as calls:
        await calls.call(b"x")
        naps = [asyncio.create_task(calls.call(b"nap")) for _ in range(2)]
        await asyncio.sleep(0)
        naps[1].cancel()
        await asyncio.wait(naps[1:])
        assert await calls.call(b"x") == b"xx"


async def test_server_that_ended_is_restarted() -> None:
    async with started() as calls:
        await calls.call(b"x")
        server = calls.server
        assert server is not None
        nap = asyncio.create_task(calls.call(b"nap"))
        await asyncio.sleep(0.1)
        server.kill()
        with pytest.raises(CallsBusyError):
            await nap
        assert await calls.call(b"x") == b"xx"


def test_server_whose_client_ends_ends_its_calls() -> None:
    client, standard_input = socket.socketpair()
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=standard_input) as server:
        with client, standard_input, client.makefile("rwb", buffering=0) as lines:
            lines.write(order(b"x"))
            assert b'"result"' in lines.readline()
            lines.write(order(b"spin"))
            while not (children := psutil.Process(server.pid).children()):
                pass
        psutil.wait_procs(children, timeout=5)
        assert server.wait(5) == 0
        assert not any(child.is_running() for child in children)
