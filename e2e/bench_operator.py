"""What 200 idle MacroInstances cost the operator, and how soon it acts on a change of one.

A real API server, and the real operator. The pods are played: they count as ready, and a head of
each MacroInstance answers that all is well, as often as it is asked.

    python e2e/bench_operator.py --json FILE
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from statistics import quantiles
from typing import Any

import lightkube
import msgspec
import psutil
from aiohttp import web
from cluster import ApiCluster
from lightkube.config.kubeconfig import KubeConfig
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment, DeploymentStatus
from lightkube.resources.core_v1 import Namespace, Pod, PodStatus
from lightkube.types import PatchType

from macroserve.api.messages import CellReport, HeadReport, InstanceReport
from macroserve.bench.figures import report
from macroserve.core.status import CellView, InstanceStatus, Pool
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import MACROINSTANCE

ROOT = Path(__file__).parents[1]
NAMESPACE = "bench"
INSTANCES = 3
READY_TIMEOUT_S = 240
SETTLE_S = 45
"""Rounds have become as rare as they get."""
IDLE_S = 60
REACTION_TIMEOUT_S = 30

KOPF = "import sys; sys.modules['uvloop'] = None; from kopf.cli import main; main()"
"""As in the operator's image, where there is no uvloop."""


def manifest(index: int) -> dict[str, Any]:
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "metadata": {"name": f"bench-{index}", "namespace": NAMESPACE},
        "spec": {
            "model": {"source": "tiny", "maxModelLen": 2048},
            "engine": {"type": "Emulated"},
            "slo": {"ttft": "2s", "tpot": "100ms"},
            "instances": INSTANCES,
            "mitosis": {"lowerBound": 3, "upperBound": 6},
        },
    }


@dataclass
class Addresses:
    """Of pods: each one of its own on the loopback network, which the heads tell apart."""

    by_pod: dict[str, str] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    """MacroInstances, by the address of their head."""

    def of(self, pod: str) -> str:
        return self.by_pod.setdefault(pod, str(IPv4Address("127.1.0.1") + len(self.by_pod)))


class Pods:
    """Plays kubelets, schedulers and heads."""

    def __init__(self, client: lightkube.AsyncClient) -> None:
        self._client = client
        self._addresses = Addresses()
        self._instances: dict[str, dict[str, Pod]] = {}
        self._added: dict[str, asyncio.Future[float]] = {}

    def added(self, pod: str) -> asyncio.Future[float]:
        """When it was first seen, on the clock of ``time.perf_counter``."""
        return self._added.setdefault(pod, asyncio.get_running_loop().create_future())

    async def play(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_pods())
            tasks.create_task(self._watch_deployments())

    async def _watch_pods(self) -> None:
        async for change, pod in self._client.watch(Pod, namespace=NAMESPACE):
            labels = pod.metadata.labels
            if change == "ADDED":
                self.added(pod.metadata.name).set_result(time.perf_counter())
                if labels[names.COMPONENT] == "instance":
                    of_one = self._instances.setdefault(labels[names.MACROINSTANCE], {})
                    of_one[labels[names.INSTANCE]] = pod
                await self._set_ready(pod.metadata.name)

    async def _set_ready(self, pod: str) -> None:
        status = {
            "phase": "Running",
            "podIP": self._addresses.of(pod),
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        await self._client.patch(
            PodStatus, pod, {"status": status}, namespace=NAMESPACE, patch_type=PatchType.MERGE
        )

    async def _watch_deployments(self) -> None:
        async for change, deployment in self._client.watch(Deployment, namespace=NAMESPACE):
            if change == "ADDED":
                labels = deployment.metadata.labels
                if labels[names.COMPONENT] == "head":
                    await self._make_head(labels[names.MACROINSTANCE], deployment)
                ready = deployment.spec.replicas
                status = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas"), ready)
                status["observedGeneration"] = deployment.metadata.generation
                await self._client.patch(
                    DeploymentStatus,
                    deployment.metadata.name,
                    {"status": status},
                    namespace=NAMESPACE,
                    patch_type=PatchType.MERGE,
                )

    async def _make_head(self, macroinstance: str, deployment: Deployment) -> None:
        name = names.head(macroinstance)
        self._addresses.heads[self._addresses.of(name)] = macroinstance
        template = deployment.spec.template
        metadata = ObjectMeta(name=name, namespace=NAMESPACE, labels=template.metadata.labels)
        await self._client.create(Pod(metadata=metadata, spec=template.spec))

    @asynccontextmanager
    async def heads(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/admin/v1/cells", self._cells)
        app.router.add_route("*", "/{rest:.*}", self._done)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", names.HEAD_PORT).start()
        try:
            yield
        finally:
            await runner.cleanup()

    async def _done(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _cells(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        address, _ = request.transport.get_extra_info("sockname")
        pods = self._instances.get(self._addresses.heads[address], {})
        instances = tuple(
            InstanceReport(
                name=name,
                pool=Pool(pod.metadata.labels[names.POOL]),
                address=f"http://{self._addresses.of(pod.metadata.name)}:{names.INSTANCE_PORT}",
                status=InstanceStatus(seq=1),
                age_s=0.5,
                in_flight=0,
            )
            for name, pod in pods.items()
        )
        view = CellView(
            name="cell-0",
            instances=tuple(pods),
            high_priority=tuple(found.name for found in instances if found.pool is Pool.HP),
            num_ready=len(pods),
        )
        told = HeadReport((CellReport(view, instances),), frozenset({view.name}))
        return web.Response(body=msgspec.json.encode(told), content_type="application/json")


@contextmanager
def operator(kubeconfig: Path, log: Path) -> Iterator[psutil.Process]:
    env = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "MACROSERVE_ENGINE_IMAGE": "registry.local/engine:bench",
        "POD_NAMESPACE": "default",
    }
    command = [sys.executable, "-c", KOPF, "run", "-A", "-m", "macroserve.operator.handlers"]
    with log.open("w") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(30)


async def wait_until_ready(client: lightkube.AsyncClient, count: int) -> None:
    give_up = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < give_up:
        found = [one async for one in client.list(MACROINSTANCE, namespace=NAMESPACE)]
        if sum(is_ready(one) for one in found) == count:
            return
        await asyncio.sleep(1)
    raise TimeoutError(f"not all {count} MacroInstances are ready after {READY_TIMEOUT_S} s")


def is_ready(resource: dict[str, Any]) -> bool:
    conditions = {
        found["type"]: found["status"]
        for found in (resource.get("status") or {}).get("conditions", ())
    }
    return conditions.get("Ready") == "True" and conditions.get("Progressing") == "False"


async def cost(process: psutil.Process) -> dict[str, float]:
    """Of standing by."""
    before, started = process.cpu_times(), time.perf_counter()
    await asyncio.sleep(IDLE_S)
    after, elapsed_s = process.cpu_times(), time.perf_counter() - started
    cpu_s = after.user + after.system - before.user - before.system
    return {
        "operator.rss_mb": process.memory_info().rss / 1e6,
        "operator.cpu_pct": 100 * cpu_s / elapsed_s,
    }


async def reaction_s(client: lightkube.AsyncClient, pods: Pods, index: int) -> float:
    """From before one instance more is asked for until its pod is seen."""
    started = time.perf_counter()
    await client.patch(
        MACROINSTANCE,
        f"bench-{index}",
        {"spec": {"instances": INSTANCES + 1}},
        namespace=NAMESPACE,
        patch_type=PatchType.MERGE,
    )
    pod = names.pod(f"bench-{index}", f"instance-{INSTANCES}")
    async with asyncio.timeout(REACTION_TIMEOUT_S):
        return await pods.added(pod) - started


async def measure(kubeconfig: Path, process: psutil.Process, count: int) -> dict[str, float]:
    client = lightkube.AsyncClient(KubeConfig.from_file(kubeconfig), field_manager="bench")
    pods = Pods(client)
    await client.create(Namespace(metadata=ObjectMeta(name=NAMESPACE)))
    async with pods.heads():
        playing = asyncio.create_task(pods.play())
        try:
            for index in range(count):
                await client.create(MACROINSTANCE(manifest(index)))
            await wait_until_ready(client, count)
            await asyncio.sleep(SETTLE_S)
            figures = await cost(process)
            reactions = [await reaction_s(client, pods, index) for index in range(count)]
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
    figures["operator.react_p99_s"] = quantiles(reactions, n=100)[98]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--count", type=int, default=200, help="how many MacroInstances")
    options = parser.parse_args()
    with ApiCluster() as cluster, tempfile.TemporaryDirectory() as folder:
        cluster.apply_crd(ROOT / "crds" / "macroinstances.yaml")
        log = Path(folder) / "operator.log"
        with operator(cluster.kubeconfig, log) as process:
            try:
                figures = asyncio.run(measure(cluster.kubeconfig, process, options.count))
            except BaseException:
                print(log.read_text()[-4000:], file=sys.stderr)
                raise
    report(figures, options.json)


if __name__ == "__main__":
    main()
