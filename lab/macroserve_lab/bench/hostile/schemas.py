"""Send twenty schemas that take minutes to compile, next to streams without schemas."""

import asyncio
import contextlib
from collections import Counter

import aiohttp

from macroserve_lab.bench.hostile.bystanders import bystanders
from macroserve_lab.bench.hostile.served import MODEL, Served

NUM_SCHEMAS = 20
NUM_PATTERNS = 300
NUM_BYSTANDERS = 4
NUM_TOKENS = 300
REQUEST_TIMEOUT_S = 200.0
NO_ANSWER = 0


async def measure(deployment: Served) -> dict[str, float]:
    """Return the disturbance of the endpoint and its bystanders by the schemas.

    schema_pause_s: longest pause of a bystander's stream.
    schema_streams_broken: number of bystanders' incomplete streams.
    schema_engines_lost: number of engines lost.
    schema_5xx: number of schemas answered with 500 or above, or not at all.
    """
    async with bystanders(deployment.completions, NUM_BYSTANDERS, NUM_TOKENS) as seen:
        await asyncio.sleep(3)
        seen.longest_pause_s = 0.0
        before = deployment.engines()
        statuses = Counter(await _send(deployment.completions))
        lost = before - deployment.engines()
    return {
        "schema_pause_s": seen.longest_pause_s,
        "schema_streams_broken": len(seen.broken),
        "schema_engines_lost": len(lost),
        "schema_5xx": sum(
            num for status, num in statuses.items() if status >= 500 or status == NO_ANSWER
        ),
    }


async def _send(url: str) -> list[int]:
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as http:

        async def post(seed: int) -> int:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with http.post(url, json=_body(seed)) as response:
                    return response.status
            return NO_ANSWER

        return await asyncio.gather(*map(post, range(NUM_SCHEMAS)))


def _body(seed: int) -> dict[str, object]:
    """Return a body with a new schema, so that a cache of grammars does not help."""
    properties = {
        f"p{seed}_{i}": {"type": "string", "pattern": "(a{1,500}){1,500}"}
        for i in range(NUM_PATTERNS)
    }
    schema = {"type": "object", "properties": properties}
    return {
        "model": MODEL,
        "prompt": "Hello",
        "max_tokens": 5,
        "structured_outputs": {"json": schema},
    }
