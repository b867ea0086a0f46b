"""Run bystanders: clients with valid streams, one after another, whose pauses are measured."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from macroserve_lab.bench.hostile.served import MODEL
from macroserve_lab.bench.streams import completion, payloads

TIMEOUT_S = 180.0


@dataclass(slots=True)
class Seen:
    """Disturbances of all bystanders."""

    num_streams: int = 0
    longest_ttft_s: float = 0.0
    """Longest time from a request to its first event."""
    longest_pause_s: float = 0.0
    """Longest time between two events of one stream."""
    broken: list[str] = field(default_factory=list)
    """Errors of incomplete streams."""


@asynccontextmanager
async def bystanders(url: str, num_clients: int, num_tokens: int) -> AsyncIterator[Seen]:
    """Stream completions from ``num_clients`` clients until left, then finish running streams."""
    seen, leave = Seen(), asyncio.Event()
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:

        async def client(seed: int) -> None:
            while not leave.is_set():
                seen.num_streams += 1
                try:
                    await _stream(http, url, [100 + seed] * 16, num_tokens, seen)
                except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                    seen.broken.append(f"{type(error).__name__}: {error}")
                    await asyncio.sleep(0.5)

        clients = [asyncio.create_task(client(seed)) for seed in range(num_clients)]
        try:
            yield seen
        finally:
            leave.set()
            await asyncio.gather(*clients)


async def _stream(
    http: aiohttp.ClientSession, url: str, prompt: list[int], num_tokens: int, seen: Seen
) -> None:
    """Stream one completion. Raises ValueError if it is incomplete."""
    started_s = last_s = time.perf_counter()
    whole = False
    async with http.post(url, json=completion(MODEL, prompt, num_tokens)) as response:
        response.raise_for_status()
        async for payload in payloads(response):
            now = time.perf_counter()
            if last_s == started_s:
                seen.longest_ttft_s = max(seen.longest_ttft_s, now - started_s)
            else:
                seen.longest_pause_s = max(seen.longest_pause_s, now - last_s)
            last_s = now
            whole = whole or f'"completion_tokens":{num_tokens}'.encode() in payload
    if not whole:
        raise ValueError("the stream was cut short")
