"""Reconciles of a fake deployment, and their results."""

import asyncio
from datetime import timedelta

from support.fake_api_server import Raw
from support.fake_deployment import FakeDeployment

from macroserve.operator.k8s.kinds import EVENT, POD
from macroserve.operator.reconcile.reconciler import Reconciler
from macroserve.operator.render.served_tls import PLAIN, ServedTls

MAX_RECONCILES = 60
ECC = "CUDA error: uncorrectable ECC error encountered"


async def settle(fake: FakeDeployment, reconciler: Reconciler) -> None:
    """Alternate reconciles and kubelets until nothing changes, even after all budgets."""
    idle = 0
    for _ in range(MAX_RECONCILES):
        fake.api.calls.clear()
        fake.requests.clear()
        await fake.reconcile(reconciler)
        fake.kubelets()
        fake.restarted()
        fake.now += timedelta(seconds=60)
        changes = [call for call in fake.api.calls if not call.startswith("get")]
        idle = 0 if changes or orders(fake) else idle + 1
        if idle == 5:
            return
    raise AssertionError(f"still busy: {fake.api.calls} {orders(fake)}")


def fail_starts(fake: FakeDeployment, pod: Raw, node: str, times: int) -> None:
    """Let `times` starts of the pod fail by a device of its node, in back-off before the next."""
    fake.crash(pod)
    ended = {"exitCode": 1, "message": ECC, "startedAt": "2026-01-01T00:00:02Z"}
    engine = {
        "name": "engine",
        "ready": False,
        "restartCount": times - 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": ended},
    }
    found = fake.api.all(POD)
    (pod,) = [p for p in found if p["metadata"]["name"] == pod["metadata"]["name"]]
    spec, status = {**pod["spec"], "nodeName": node}, {**pod["status"], "podIP": None}
    status |= {"phase": "Pending", "containerStatuses": [engine]}
    fake.api.put(POD, {**pod, "spec": spec, "status": status})


def fewest_staying(fake: FakeDeployment, reconciler: Reconciler) -> int:
    """Return the minimum number of pods without a deletion, over reconciles of a minute each."""
    fewest = len(fake.pods())
    for _ in range(MAX_RECONCILES):
        asyncio.run(fake.reconcile(reconciler))
        staying = [p for p in fake.pods().values() if "deletionTimestamp" not in p["metadata"]]
        fewest = min(fewest, len(staying))
        fake.kubelets()
        fake.now += timedelta(seconds=60)
    return fewest


def orders(fake: FakeDeployment) -> list[str]:
    return [request for request in fake.requests if not request.startswith("GET")]


def settled(wanted: Raw, served_tls: ServedTls = PLAIN) -> tuple[FakeDeployment, Reconciler]:
    fake = FakeDeployment(served_tls=served_tls)
    fake.apply(wanted)
    reconciler = fake.reconciler()
    asyncio.run(settle(fake, reconciler))
    return fake, reconciler


def cells(fake: FakeDeployment) -> dict[str, set[str]]:
    return {cell: set(members) for cell, members in fake.cells.items()}


def condition(fake: FakeDeployment, kind: str) -> Raw:
    found = fake.resource()
    assert found is not None
    return next(c for c in found["status"]["conditions"] if c["type"] == kind)


def events(fake: FakeDeployment) -> set[str]:
    return {event["reason"] for event in fake.api.all(EVENT)}
