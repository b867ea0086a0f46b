"""Compare the CPU time of a streamed token, outside the engine, with bare vLLM's API server.

An instance has its engine and its server in one process, of which only the server's threads count
(``peers.usage``). Both sides run at once and stream alternately, so that a slow minute of the
machine affects both. The usage without requests is measured first, and subtracted.
"""

import asyncio
import os
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import aiohttp
import msgspec

from macroserve.engine.settings import EngineSettings
from macroserve_lab.bench.cluster import running
from macroserve_lab.bench.figures import machine
from macroserve_lab.bench.overhead import bare_vllm
from macroserve_lab.bench.peers.usage import Usage
from macroserve_lab.bench.streams import tokens_per_s

IDLE_S = 10.0
"""Duration of the measurement without requests: at least one period of every poll."""
SETTLED_SHARE = 0.2
"""More than both sides' usage without requests, less than that of late processes' imports."""
SETTLE_TIMEOUT_S = 300.0
NUM_TOKENS = 200


class Side(msgspec.Struct, frozen=True):
    """One side in one round."""

    cpu_us: float
    """CPU time of a token outside the engine, microseconds."""
    engine_cpu_us: float
    tokens_per_s: float


class Round(msgspec.Struct, frozen=True):
    """One line of the journal."""

    machine: str
    commit: str
    num_streams: int
    ours: Side
    stock: Side


@dataclass(frozen=True, slots=True)
class TokenCpuOptions:
    num_rounds: int = 7
    num_streams: int = 16
    journal: Path | None = None
    """File with a JSON line per round; those of the same machine, commit and number of streams
    count, and only missing ones are measured."""


async def measure(
    settings: EngineSettings, options: TokenCpuOptions, commit: str
) -> dict[str, float]:
    """Return ``engine.token_cpu_ratio`` and its inputs, as medians of rounds."""
    rounds = _known(options, commit)
    missing = options.num_rounds - len(rounds)
    if missing > 0:
        rounds += await _measured(replace(settings, strategy="vllm"), options, missing, commit)
    return {
        "engine.token_cpu_ratio": median(r.ours.cpu_us / r.stock.cpu_us for r in rounds),
        "engine.token_cpu_us": median(r.ours.cpu_us for r in rounds),
        "engine.stock_token_cpu_us": median(r.stock.cpu_us for r in rounds),
        "engine.token_cpu_tokens_per_s": median(r.ours.tokens_per_s for r in rounds),
        "engine.stock_token_cpu_tokens_per_s": median(r.stock.tokens_per_s for r in rounds),
    }


async def _measured(
    settings: EngineSettings, options: TokenCpuOptions, count: int, commit: str
) -> list[Round]:
    rounds: list[Round] = []
    async with AsyncExitStack() as stack:
        bare = await stack.enter_async_context(bare_vllm(settings))
        cluster = await stack.enter_async_context(running(settings, [1]))
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )

        async def stream(endpoint: str) -> float:
            name = settings.served_name
            return await tokens_per_s(http, endpoint, name, options.num_streams, NUM_TOKENS)

        for endpoint in (cluster.endpoint, bare):
            await stream(endpoint)
        idle_share = await _idle_share()
        for number in range(count):
            order = (cluster.endpoint, bare) if number % 2 else (bare, cluster.endpoint)
            sides: dict[str, Side] = {}
            for endpoint in order:
                began, used = time.monotonic(), _used()
                rate = await stream(endpoint)
                elapsed_s, now = time.monotonic() - began, _used()
                own_s = now.other_cpu_s - used.other_cpu_s - idle_share * elapsed_s
                engine_s = now.engine_cpu_s - used.engine_cpu_s
                num_tokens = options.num_streams * NUM_TOKENS
                sides[endpoint] = Side(1e6 * own_s / num_tokens, 1e6 * engine_s / num_tokens, rate)
            ended = Round(
                machine(), commit, options.num_streams, sides[cluster.endpoint], sides[bare]
            )
            rounds.append(ended)
            _append(options.journal, ended)
    return rounds


async def _idle_share() -> float:
    """Return both sides' usage of a core without requests, after their start. Raises TimeoutError
    if it does not settle."""
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        while True:
            began, used = time.monotonic(), _used()
            await asyncio.sleep(IDLE_S)
            share = (_used().other_cpu_s - used.other_cpu_s) / (time.monotonic() - began)
            if share < SETTLED_SHARE:
                return share


def _used() -> Usage:
    """Return the usage of both sides, without this process, which is the client."""
    return Usage.below(os.getpid())


def _known(options: TokenCpuOptions, commit: str) -> list[Round]:
    if options.journal is None or not options.journal.exists():
        return []
    lines = options.journal.read_bytes().splitlines()
    rounds = [msgspec.json.decode(line, type=Round) for line in lines]
    same = (machine(), commit, options.num_streams)
    return [r for r in rounds if (r.machine, r.commit, r.num_streams) == same]


def _append(journal: Path | None, ended: Round) -> None:
    if journal is not None:
        journal.parent.mkdir(parents=True, exist_ok=True)
        with journal.open("ab") as lines:
            lines.write(msgspec.json.encode(ended) + b"\n")
