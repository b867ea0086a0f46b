"""Measure the overhead of the ingress: time to first token, and tokens per second.

Both sides run at once and are measured alternately, so that a slow minute affects both.
"""

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp

from macroserve.api.handle import InstanceHandle
from macroserve.api.messages import RequestInfo
from macroserve.core.request import Slo
from macroserve.engine.settings import EngineSettings
from macroserve.engine.tokens import Choice, TokenRequest
from macroserve.engine.vllm.environment import DEFAULTS
from macroserve.serving.ingress.instance_client import SILENCE_S, InstanceClient
from macroserve.serving.security.calls import session
from macroserve_lab.bench.cluster import running
from macroserve_lab.bench.ports import free_port
from macroserve_lab.bench.stock_vllm import api_server
from macroserve_lab.bench.streams import completion, stream, tokens_per_s

TTFT_ROUNDS = 60
THROUGHPUT_ROUNDS = 7
NUM_STREAMS = 8
NUM_TOKENS = 200
START_TIMEOUT_S = 120.0


async def measure(settings: EngineSettings) -> dict[str, float]:
    """Return ``overhead.ttft_added_ms_p50``, ``overhead.throughput_ratio`` and their inputs."""
    settings = replace(settings, strategy="vllm")
    async with (
        bare_vllm(settings) as bare,
        running(settings, [1]) as cluster,
        session(cluster.keys, connecting={"limit": 0}) as http,
    ):
        client = InstanceClient(cluster.keys, SILENCE_S)
        await client.start()
        through, straight = await _ttfts(
            http, client, settings, cluster.endpoint, cluster.handles[0]
        )
        await client.stop()
        ratios: list[float] = []
        rates: list[tuple[float, float]] = []
        for _ in range(THROUGHPUT_ROUNDS):
            ours, theirs = [
                await tokens_per_s(http, endpoint, settings.served_name, NUM_STREAMS, NUM_TOKENS)
                for endpoint in (cluster.endpoint, bare)
            ]
            rates.append((ours, theirs))
            ratios.append(ours / theirs)
    return {
        "overhead.ttft_added_ms_p50": 1e3
        * (statistics.median(through) - statistics.median(straight)),
        "overhead.throughput_ratio": statistics.median(ratios),
        "overhead.ttft_ingress_ms_p50": 1e3 * statistics.median(through),
        "overhead.ttft_straight_ms_p50": 1e3 * statistics.median(straight),
        "overhead.tokens_per_s": statistics.median(ours for ours, _ in rates),
        "overhead.bare_vllm_tokens_per_s": statistics.median(theirs for _, theirs in rates),
    }


async def _ttfts(
    http: aiohttp.ClientSession,
    client: InstanceClient,
    settings: EngineSettings,
    endpoint: str,
    instance: InstanceHandle,
) -> tuple[list[float], list[float]]:
    through: list[float] = []
    straight: list[float] = []
    for round_ in range(TTFT_ROUNDS):
        prompt = [10 + round_] * 32
        body = completion(settings.served_name, prompt, 2)
        timed = await stream(http, endpoint + "/v1/completions", body, {})
        through.append(timed.ttft_s)
        name = f"straight-{round_}"
        straight.append(await _straight_ttft_s(client, instance, name, prompt, settings.slo))
    return through, straight


async def _straight_ttft_s(
    client: InstanceClient, instance: InstanceHandle, name: str, prompt: list[int], slo: Slo
) -> float:
    """Return the TTFT of the ingress's client without the ingress."""
    info = RequestInfo(route_id=name, age_s=0.0, slo=slo)
    first_s: list[float] = []

    def put(choice: Choice) -> None:
        if choice.token_ids:
            first_s.append(time.perf_counter())

    began_s = time.perf_counter()
    await client.stream(instance.name, instance.address, TokenRequest.greedy(info, prompt, 2), put)
    return first_s[0] - began_s


@asynccontextmanager
async def bare_vllm(settings: EngineSettings) -> AsyncIterator[str]:
    """Run vLLM's API server with the same engine arguments and vLLM's scheduler, without Ray."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *api_server(settings, port),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=_environment(),
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(START_TIMEOUT_S), aiohttp.ClientSession() as http:
            while not await _answers(http, endpoint + "/health"):
                if process.returncode is not None:
                    raise RuntimeError("vLLM's own server did not start")
                await asyncio.sleep(0.2)
        yield endpoint
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


def _environment() -> dict[str, str]:
    """Return an environment with one compute thread, as for the compared instance."""
    return {**DEFAULTS, **os.environ, "OMP_NUM_THREADS": "1"}
