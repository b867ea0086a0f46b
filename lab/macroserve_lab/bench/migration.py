"""Measure the migration of a handle between cells while streams run, and disturbed streams."""

import asyncio
import itertools
import statistics
from collections.abc import Sequence

import aiohttp

from macroserve.engine.settings import EngineSettings
from macroserve_lab.bench.cluster import BenchCluster, running
from macroserve_lab.bench.streams import TimedStream, completion, stream

NUM_STREAMS = 20
NUM_MOVES = 60
NUM_TOKENS = 150
CELLS = ("cell-0", "cell-1")


async def measure(settings: EngineSettings) -> dict[str, float]:
    """Return ``migration.p95_ms``, ``migration.disturbed_streams`` and their inputs."""
    async with (
        running(settings, [2, 1]) as cluster,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        stop = asyncio.Event()
        load = [
            asyncio.create_task(_stream_until(stop, http, settings, cluster, i))
            for i in range(NUM_STREAMS)
        ]
        await asyncio.sleep(2)
        seconds = await _move_about(cluster)
        stop.set()
        streams = [s for streams in await asyncio.gather(*load) for s in streams]
        rerouted = await _rerouted(http, cluster.private)
    cut = sum(s.num_tokens != NUM_TOKENS for s in streams)
    return {
        "migration.p95_ms": 1e3 * _quantile(seconds, 0.95),
        "migration.disturbed_streams": cut + rerouted,
        "migration.p50_ms": 1e3 * statistics.median(seconds),
        "migration.moves": len(seconds),
        "migration.streams": len(streams),
    }


async def _move_about(cluster: BenchCluster) -> list[float]:
    """Migrate the first instance to the other cell and back; return the seconds of each
    migration."""
    name = cluster.handles[0].name
    seconds: list[float] = []
    ways = itertools.cycle((CELLS, CELLS[::-1]))
    for source, target in itertools.islice(ways, NUM_MOVES):
        seconds.append(await cluster.admin.migrate(name, source, target))
        await asyncio.sleep(0.1)
    return seconds


async def _stream_until(
    stop: asyncio.Event,
    http: aiohttp.ClientSession,
    settings: EngineSettings,
    cluster: BenchCluster,
    seed: int,
) -> list[TimedStream]:
    url = cluster.endpoint + "/v1/completions"
    streams: list[TimedStream] = []
    while not stop.is_set():
        prompt = [100 + seed + len(streams)] * 16
        body = completion(settings.served_name, prompt, NUM_TOKENS)
        streams.append(await stream(http, url, body, {}))
    return streams


async def _rerouted(http: aiohttp.ClientSession, private: str) -> int:
    """Return the attempts that moved to another instance, as the ingress counts them."""
    async with http.get(private + "/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(
        int(float(line.rsplit(" ", 1)[1]))
        for line in lines
        if line.startswith("macroserve_reroutes_total")
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
