"""An asymmetric partition: an instance's cell sees it, but no byte reaches it from the ingress."""

import asyncio
import time
from dataclasses import replace

from macroserve.cli.bench.cluster import running
from macroserve.cli.bench.hostile.bystanders import bystanders
from macroserve.cli.bench.hostile.lossy import lossy_path
from macroserve.core.handle import sign
from macroserve.engine.settings import EngineSettings

CELL = "cell-0"
INSTANCES = 3
NUM_STREAMS = 9
NUM_TOKENS = 600
PARTITION_S = 40.0


async def measure(settings: EngineSettings) -> dict[str, float]:
    """``partition_gap_s``: the longest time that a client waited for its next token, or its first,
    while one of three instances was out of the ingress's reach; ``partition_streams_broken``."""
    async with running(settings, [INSTANCES]) as cluster:
        handle = cluster.handles[0]
        async with lossy_path(handle.address) as path:
            await cluster.admin.release(CELL, handle.name)
            behind = replace(handle, address=path.url)
            await cluster.admin.adopt(CELL, sign(behind, cluster.keys.ring, time.time()))
            url = cluster.endpoint + "/v1/completions"
            async with bystanders(url, NUM_STREAMS, NUM_TOKENS) as seen:
                await asyncio.sleep(3)
                path.lost = True
                await asyncio.sleep(PARTITION_S)
    return {
        "partition_gap_s": max(seen.longest_pause_s, seen.longest_ttft_s),
        "partition_streams_broken": len(seen.broken),
    }
