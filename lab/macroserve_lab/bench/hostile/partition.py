"""Measure an asymmetric partition: a cell reaches its instance, but the ingress receives nothing
from it."""

import asyncio
import time
from dataclasses import replace

from macroserve.api.handle import sign
from macroserve.engine.settings import EngineSettings
from macroserve_lab.bench.cluster import running
from macroserve_lab.bench.hostile.bystanders import bystanders
from macroserve_lab.bench.hostile.lossy import LossyPath, lossy_path

CELL = "cell-0"
INSTANCES = 3
NUM_STREAMS = 9
NUM_TOKENS = 600
PARTITION_S = 40.0


async def measure(settings: EngineSettings) -> dict[str, float]:
    """Return the figures of ``observe`` for three instances in one cell."""
    async with running(settings, [INSTANCES]) as cluster:
        handle = cluster.handles[0]
        async with lossy_path(handle.address) as path:
            await cluster.admin.detach(CELL, handle.name)
            behind = replace(handle, address=path.url)
            await cluster.admin.adopt(CELL, sign(behind, cluster.keys.ring, time.time()))
            return await observe(cluster.endpoint, path, PARTITION_S)


async def observe(endpoint: str, path: LossyPath, partition_s: float) -> dict[str, float]:
    """Return the figures of streams while one of several instances is out of the ingress's reach.

    partition_gap_s: longest time that a client waited for a token.
    partition_streams_broken: number of incomplete streams.
    path: the path to that instance, which loses everything for ``partition_s``.
    """
    async with bystanders(endpoint + "/v1/completions", NUM_STREAMS, NUM_TOKENS) as seen:
        await asyncio.sleep(3)
        path.lost = True
        await asyncio.sleep(partition_s)
    return {
        "partition_gap_s": max(seen.longest_pause_s, seen.longest_ttft_s),
        "partition_streams_broken": len(seen.broken),
    }
