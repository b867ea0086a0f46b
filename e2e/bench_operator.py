"""Measure the operator's usage with 200 idle MacroInstances, and its reaction time to a change.

API server and operator are real. Pods are faked as ready, with a head for each MacroInstance that
always reports a healthy deployment.

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

import msgspec
import psutil
from aiohttp import web
from cluster import ApiCluster
from kubernetes.aio.client import (
    AppsV1Api,
    CoreV1Api,
    CustomObjectsApi,
    V1Deployment,
    V1Namespace,
    V1ObjectMeta,
    V1OwnerReference,
    V1Pod,
    V1PodTemplateSpec,
    V1ReplicaSet,
    V1ReplicaSetSpec,
)
from kubernetes.aio.config import new_client_from_config
from kubernetes.aio.watch import Watch

from macroserve.api.messages import CellReport, HeadReport, InstanceReport
from macroserve.core.status import CellView, InstanceStatus, Pool
from macroserve.operator.k8s import names
from macroserve_lab.bench.figures import report

ROOT = Path(__file__).parents[1]
NAMESPACE = "bench"
INSTANCES = 3
MACROINSTANCES = {
    "group": names.GROUP,
    "version": names.VERSION,
    "plural": names.PLURAL,
    "namespace": NAMESPACE,
}
READY_TIMEOUT_S = 240
SETTLE_S = 45
"""Time until the interval of reconciles has reached its maximum."""
IDLE_S = 60
REACTION_TIMEOUT_S = 30

KOPF = "import sys; sys.modules['uvloop'] = None; from kopf.cli import main; main()"
"""kopf without uvloop, as in the operator's image."""


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
    """Loopback addresses of pods, one each, which identify the heads."""

    by_pod: dict[str, str] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    """MacroInstances by the address of their head."""

    def of(self, pod: str) -> str:
        return self.by_pod.setdefault(pod, str(IPv4Address("127.1.0.1") + len(self.by_pod)))


class Pods:
    """A fake of kubelets, schedulers and heads."""

    def __init__(self, core: CoreV1Api, apps: AppsV1Api) -> None:
        self._core = core
        self._apps = apps
        self._addresses = Addresses()
        self._instances: dict[str, dict[str, V1Pod]] = {}
        self._added: dict[str, asyncio.Future[float]] = {}

    def added(self, pod: str) -> asyncio.Future[float]:
        """Return a future of the time when the pod was first seen, on the clock
        ``time.perf_counter``."""
        return self._added.setdefault(pod, asyncio.get_running_loop().create_future())

    async def play(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_pods())
            tasks.create_task(self._watch_deployments())

    async def _watch_pods(self) -> None:
        async for event in Watch().stream(self._core.list_namespaced_pod, NAMESPACE):
            pod = event["object"]
            labels = pod.metadata.labels
            if event["type"] == "ADDED":
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
        await self._core.patch_namespaced_pod_status(pod, NAMESPACE, {"status": status})

    async def _watch_deployments(self) -> None:
        async for event in Watch().stream(self._apps.list_namespaced_deployment, NAMESPACE):
            if event["type"] == "ADDED":
                deployment = event["object"]
                labels = deployment.metadata.labels
                if labels[names.COMPONENT] == "head":
                    await self._make_head(labels[names.MACROINSTANCE], deployment)
                ready = deployment.spec.replicas
                status = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas"), ready)
                status["observedGeneration"] = deployment.metadata.generation
                await self._apps.patch_namespaced_deployment_status(
                    deployment.metadata.name, NAMESPACE, {"status": status}
                )

    async def _make_head(self, macroinstance: str, deployment: V1Deployment) -> None:
        name = names.head(macroinstance)
        self._addresses.heads[self._addresses.of(name)] = macroinstance
        template = deployment.spec.template
        spec = V1ReplicaSetSpec(selector=deployment.spec.selector, template=template)
        replica_set = await self._apps.create_namespaced_replica_set(
            NAMESPACE, V1ReplicaSet(metadata=owned(name, template, deployment), spec=spec)
        )
        pod = V1Pod(metadata=owned(name, template, replica_set), spec=template.spec)
        await self._core.create_namespaced_pod(NAMESPACE, pod)

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


def owned(
    name: str, template: V1PodTemplateSpec, owner: V1Deployment | V1ReplicaSet
) -> V1ObjectMeta:
    reference = V1OwnerReference(
        api_version="apps/v1",
        kind=type(owner).__name__.removeprefix("V1"),
        name=owner.metadata.name,
        uid=owner.metadata.uid,
        controller=True,
    )
    return V1ObjectMeta(name=name, labels=template.metadata.labels, owner_references=[reference])


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


async def wait_until_ready(custom: CustomObjectsApi, count: int) -> None:
    give_up = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < give_up:
        found = await custom.list_namespaced_custom_object(**MACROINSTANCES)
        if sum(is_ready(one) for one in found["items"]) == count:
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
    """Return the CPU and memory of an idle operator."""
    before, started = process.cpu_times(), time.perf_counter()
    await asyncio.sleep(IDLE_S)
    after, elapsed_s = process.cpu_times(), time.perf_counter() - started
    cpu_s = after.user + after.system - before.user - before.system
    return {
        "operator.rss_mb": process.memory_info().rss / 1e6,
        "operator.cpu_pct": 100 * cpu_s / elapsed_s,
    }


async def reaction_s(custom: CustomObjectsApi, pods: Pods, index: int) -> float:
    """Return the time from a request for one more instance until its pod appears."""
    started = time.perf_counter()
    await custom.patch_namespaced_custom_object(
        **MACROINSTANCES,
        name=f"bench-{index}",
        body={"spec": {"instances": INSTANCES + 1}},
        _content_type="application/merge-patch+json",
    )
    pod = names.pod_name(f"bench-{index}", f"instance-{INSTANCES}")
    async with asyncio.timeout(REACTION_TIMEOUT_S):
        return await pods.added(pod) - started


async def measure(kubeconfig: Path, process: psutil.Process, count: int) -> dict[str, float]:
    async with await new_client_from_config(str(kubeconfig)) as client:
        core, custom = CoreV1Api(client), CustomObjectsApi(client)
        pods = Pods(core, AppsV1Api(client))
        await core.create_namespace(V1Namespace(metadata=V1ObjectMeta(name=NAMESPACE)))
        async with pods.heads():
            playing = asyncio.create_task(pods.play())
            try:
                for index in range(count):
                    await custom.create_namespaced_custom_object(
                        **MACROINSTANCES, body=manifest(index)
                    )
                await wait_until_ready(custom, count)
                await asyncio.sleep(SETTLE_S)
                figures = await cost(process)
                reactions = [await reaction_s(custom, pods, index) for index in range(count)]
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
