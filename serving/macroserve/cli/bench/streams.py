"""Streaming completions, timed by the token: the smallest client that can saturate a server."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass(slots=True)
class TimedStream:
    """started_s, token_s: on ``time.perf_counter``'s clock; one time a token event."""

    started_s: float
    token_s: list[float] = field(default_factory=list)
    complete: bool = False

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.started_s


async def stream(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any], headers: dict[str, str]
) -> TimedStream:
    """One request with ``stream: true``; raises aiohttp.ClientError when it is refused."""
    timed = TimedStream(time.perf_counter())
    async with http.post(url, json=body, headers=headers) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: [DONE]"):
                timed.complete = True
            elif line.startswith(b"data: "):
                timed.token_s.append(time.perf_counter())
    return timed


def completion(model: str, prompt: list[int], max_tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }


async def tokens_per_s(
    http: aiohttp.ClientSession, endpoint: str, model: str, num_streams: int, num_tokens: int
) -> float:
    """Of ``num_streams`` at once, from the moment that all have their first token until the
    first is done: the steady state."""
    prompts = [[100 + i] * 32 for i in range(num_streams)]
    streams = await asyncio.gather(
        *(
            stream(http, endpoint + "/v1/completions", completion(model, p, num_tokens), {})
            for p in prompts
        )
    )
    begin = max(s.token_s[0] for s in streams)
    end = min(s.token_s[-1] for s in streams)
    return sum(begin < t <= end for s in streams for t in s.token_s) / (end - begin)
