"""Streaming completions, timed by the token: the smallest client that can saturate a server."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec


@dataclass(slots=True)
class TimedStream:
    """Times on ``time.perf_counter``'s clock.

    num_tokens: by the server's own count, None if the stream ended without it: an event may carry
    several tokens.
    """

    started_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    num_tokens: int | None = None

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.started_s


async def stream(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any], headers: dict[str, str]
) -> TimedStream:
    """One request with ``stream: true``; raises aiohttp.ClientError when it is refused."""
    timed = TimedStream(time.perf_counter())
    async with http.post(url, json=body, headers=headers) as response:
        response.raise_for_status()
        event = b""
        async for line in response.content:
            if line.startswith(b"data: {"):
                timed.last_s = time.perf_counter()
                timed.first_s = timed.first_s or timed.last_s
                event = line
            elif line.startswith(b"data: [DONE]"):
                usage = msgspec.json.decode(event[len(b"data: ") :]).get("usage")
                timed.num_tokens = usage and usage["completion_tokens"]
    return timed


def completion(model: str, prompt: list[int], max_tokens: int) -> dict[str, Any]:
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
    """Of ``num_streams`` at once, from the first token of all to the last."""
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
