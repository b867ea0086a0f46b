"""Bystanders of a hostile request record how their own requests end."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from macroserve_lab.bench.hostile.bystanders import bystanders

NUM_TOKENS = 3


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """An endpoint that streams complete responses, except for prompts of 101s."""

    async def complete(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(NUM_TOKENS):
            await response.write(b'data: {"choices": []}\n\n')
        if body["prompt"][0] != 101:
            usage = f'data: {{"usage":{{"completion_tokens":{NUM_TOKENS}}}}}\n\n'
            await response.write(usage.encode())
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/completions"
    await runner.cleanup()


async def test_bystanders_of_a_healthy_endpoint_see_whole_streams(url: str) -> None:
    async with bystanders(url, 1, NUM_TOKENS) as seen:
        await asyncio.sleep(0)
    assert seen.num_streams >= 1
    assert not seen.broken
    assert 0 < seen.longest_ttft_s < 10


async def test_bystander_whose_stream_is_cut_short_counts_it_as_broken(url: str) -> None:
    async with bystanders(url, 2, NUM_TOKENS) as seen:
        await asyncio.sleep(0)
    assert {error.split(":")[0] for error in seen.broken} == {"ValueError"}


async def test_bystander_that_is_refused_counts_it_as_broken() -> None:
    async with bystanders("http://127.0.0.1:1/v1/completions", 1, NUM_TOKENS) as seen:
        await asyncio.sleep(0)
    assert len(seen.broken) == 1
