"""The newest Kubernetes accepts every field of every object that the operator writes."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import cast

import pytest
import yaml
from support.chart import render
from support.fake_api_server import FakeApiServer, Raw
from support.fake_deployment import NAME, FakeDeployment, resource
from support.fake_reconciles import fail_starts, settle, settled
from support.newest_kubernetes import problems
from support.virtual_time import run

from macroserve.operator.k8s.client import Api
from macroserve.operator.k8s.kinds import BUDGET_BETA, MACROINSTANCE, SECRET, ClusterKinds
from macroserve.operator.k8s.lease import Leader
from macroserve.operator.render.served_tls import ServedTls

pytestmark = pytest.mark.integration

MANIFESTS = sorted((Path(__file__).parents[2] / "manifests").glob("*.yaml"))
CACHES = [{"claim": "models"}, {"image": "registry.local/models:1"}]
ISSUER = {"name": "team", "kind": "Issuer"}


def test_newest_kubernetes_knows_what_the_operator_writes() -> None:
    assert problems(written()) == set()


def test_operator_wrote_to_every_kind_that_it_may_write_to() -> None:
    rendered = render({"servedTls": {"enabled": True, "issuerRef": ISSUER}}).objects.values()
    allowed = {
        resource.partition("/")[0]
        for found in rendered
        if found["metadata"]["name"] == "macroserve-operator"
        for rule in found.get("rules", ())
        if {"create", "update", "patch"} & set(rule["verbs"])
        for resource in rule["resources"]
    }
    assert allowed == {_plural(obj["kind"]) for obj in written()}


def test_unknown_field_and_removed_api_are_problems() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"gpus": 1}}
    ingress = {"apiVersion": "extensions/v1beta1", "kind": "Ingress", "metadata": {"name": "i"}}
    unknown, deprecated, removed = sorted(problems([pod, ingress]), key=len, reverse=True)
    assert unknown.startswith("v1 Pod p: ") and 'unknown field "spec.gpus"' in unknown
    assert deprecated == "extensions/v1beta1 Ingress i: deprecated since 1.14"
    assert removed == "extensions/v1beta1 Ingress i: removed in 1.22"


def _plural(kind: str) -> str:
    return f"{kind.lower().removesuffix('y')}{'ies' if kind.endswith('y') else 's'}"


@cache
def written() -> tuple[Raw, ...]:
    """Return the objects and patches of the operator's life with many MacroInstances."""
    return tuple(_leader()) + tuple(obj for fake in _deployments() for obj in fake.api.written)


def _deployments() -> Iterator[FakeDeployment]:
    for path in MANIFESTS:
        yield settled(resource(**yaml.safe_load(path.read_text())["spec"]))[0]
    for model_cache in CACHES:
        model = {"source": "tiny", "maxModelLen": 2048, "cache": model_cache}
        yield settled(resource(model=model, engine={"type": "vLLM"}))[0]
    yield _long_life()
    old = FakeDeployment()
    old.world = replace(old.world, kinds=ClusterKinds(budget=BUDGET_BETA))
    old.apply(resource())
    asyncio.run(settle(old, old.reconciler()))
    yield old
    issued = FakeDeployment(served_tls=ServedTls(enabled=True, issuer_ref=ISSUER))
    issued.apply(resource())
    asyncio.run(issued.reconcile(issued.reconciler()))
    yield issued


def _long_life() -> FakeDeployment:
    """Scale, divide, renew keys and certificates, lose a node, switch TLS off, and delete."""
    fake, reconciler = settled(resource(), ServedTls(enabled=True))

    def change(wanted: Raw) -> None:
        fake.apply(wanted)
        asyncio.run(settle(fake, reconciler))

    change(resource(6, ingress={"minReplicas": 1, "maxReplicas": 4}))
    change(resource(2, priority={"highPriorityRatio": 0.5}))
    fake.now += timedelta(days=61)
    (tokens,) = (s for s in fake.api.all(SECRET) if s["metadata"]["name"] == f"{NAME}-tokens")
    fake.api.put(SECRET, {**tokens, "stringData": {"secret": "another"}})
    fail_starts(fake, next(iter(fake.pods().values())), "gpu-7", 3)
    asyncio.run(settle(fake, reconciler))
    reconciler = fake.switch(ServedTls())
    change(resource(3, template={"spec": {"nodeSelector": {"gpu": "l20"}}}))
    fake.delete()
    asyncio.run(settle(fake, reconciler))
    (left,) = fake.api.all(MACROINSTANCE)
    assert not left["metadata"]["finalizers"]
    return fake


def _leader() -> list[Raw]:
    """Return the writes of a replica that leads and releases the Lease."""
    api = FakeApiServer()

    async def lead() -> None:
        await asyncio.sleep(10)

    async def scene() -> None:
        clock = asyncio.get_running_loop().time
        leader = asyncio.create_task(Leader(cast(Api, api), "system", "replica", clock).run(lead))
        await asyncio.sleep(5)
        leader.cancel()
        await asyncio.gather(leader, return_exceptions=True)

    run(scene())
    return api.written
