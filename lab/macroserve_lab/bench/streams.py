"""Stream completions and time their tokens, with a client small enough to saturate a server."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from macroserve.api.sse import SseParser


@dataclass(slots=True)
class TimedStream:
    """Times of one response, on ``time.perf_counter``'s clock."""

    started_s: float
    first_s: float = 0.0
    """Time of the first event with tokens."""
    last_s: float = 0.0
    """Time of the last event."""
    num_tokens: int | None = None
    """Output tokens reported by the server (an event may have several); None if not reported."""

    @property
    def ttft_s(self) -> float:
        """Return the seconds from the request to its first event."""
        return self.first_s - self.started_s


async def stream(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any], headers: dict[str, str]
) -> TimedStream:
    """Send one request with ``stream: true``; raise aiohttp.ClientError when it is refused."""
    timed = TimedStream(time.perf_counter())
    async with http.post(url, json=body, headers=headers) as response:
        response.raise_for_status()
        last = b""
        async for payload in payloads(response):
            if payload == b"[DONE]":
                usage = msgspec.json.decode(last).get("usage")
                timed.num_tokens = usage and usage["completion_tokens"]
            else:
                timed.last_s = time.perf_counter()
                timed.first_s = timed.first_s or timed.last_s
                last = payload
    return timed


async def payloads(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event on arrival."""
    parser = SseParser()
    async for chunk in response.content.iter_any():
        for payload in parser.feed(chunk):
            yield payload


def completion(model: str, prompt: list[int], max_tokens: int) -> dict[str, Any]:
    """Return the body of a completion that streams exactly ``max_tokens``."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def tokens_per_s(
    http: aiohttp.ClientSession, endpoint: str, model: str, num_streams: int, num_tokens: int
) -> float:
    """Return the output rate of ``num_streams`` at once, from their first token to their last."""
    prompts = [[100 + i] * 32 for i in range(num_streams)]
    streams = await asyncio.gather(
        *(
            stream(http, endpoint + "/v1/completions", completion(model, p, num_tokens), {})
            for p in prompts
        )
    )
    assert all(s.num_tokens == num_tokens for s in streams), "a stream was cut short"
    elapsed_s = max(s.last_s for s in streams) - min(s.first_s for s in streams)
    return num_streams * num_tokens / elapsed_s
