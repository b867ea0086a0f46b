"""A deployment of fixed cells and instances for a benchmark, without a reconciler."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from macroserve.api.auth import new_secret
from macroserve.api.client import AdminClient, AdminError, local_client
from macroserve.api.handle import InstanceHandle
from macroserve.api.keys import Purpose
from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.local.cluster import ClusterOptions, LocalCluster
from macroserve.serving.ingress.server import IngressOptions
from macroserve.serving.security.key_source import KeySource, LiveKeys
from macroserve_lab.bench.ports import free_port

READY_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class BenchCluster:
    endpoint: str
    private: str
    keys: LiveKeys
    admin: AdminClient
    handles: tuple[InstanceHandle, ...]


@asynccontextmanager
async def running(
    settings: EngineSettings, cells: Sequence[int], ingress_replicas: int = 1, threads: int = 1
) -> AsyncIterator[BenchCluster]:
    """Run a deployment that is ready when entered; every process has ended when left.

    cells: number of instances of each cell.
    """
    admin_token, secret = new_secret(), new_secret()
    keys = KeySource(tuple(Purpose), secret=secret)
    private_port = free_port()
    options = IngressOptions(
        port=free_port(),
        shared_private_port=private_port,
        macroinstance="bench",
        keys=keys,
        admin_token=admin_token,
    )
    cluster = LocalCluster(
        ClusterOptions(
            settings=settings,
            ingress=options,
            ingress_replicas=ingress_replicas,
            threads=threads,
            secret=secret,
        )
    )
    endpoint = f"http://127.0.0.1:{options.port}"
    private = f"http://{options.private_host}:{private_port}"
    try:
        async with local_client(private, admin_token) as admin:
            await cluster.start()
            names = [f"instance-{i}" for i in range(sum(cells))]
            identities, *_ = await asyncio.gather(
                asyncio.gather(*(cluster.start_instance(name, Pool.LP) for name in names)),
                cluster.deploy_ingress(),
                *(cluster.deploy_cell(f"cell-{i}") for i in range(len(cells))),
            )
            homes = [f"cell-{i}" for i, size in enumerate(cells) for _ in range(size)]
            for cell, identity in zip(homes, identities, strict=True):
                await _adopt(admin, cell, identity.handle)
            await _ready(endpoint)
            handles = tuple(map(cluster.handle, identities))
            yield BenchCluster(endpoint, private, LiveKeys(keys), admin, handles)
    finally:
        await cluster.stop()


async def _adopt(admin: AdminClient, cell: str, handle: str) -> None:
    """Attach a handle to a cell; retry until the ingress has learned of the cell."""
    for attempt in range(100):
        try:
            return await admin.adopt(cell, handle)
        except AdminError:
            if attempt == 99:
                raise
            await asyncio.sleep(0.1)
    return None


async def _ready(endpoint: str) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(READY_TIMEOUT_S):
        while True:
            async with http.get(endpoint + "/ready") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.1)
