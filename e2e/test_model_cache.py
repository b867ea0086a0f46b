"""Instances share the model that the first one has fetched, and the status has the start times."""

import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from world.hub_pod import REPOSITORY, HubPod
from world.kube import Kube
from world.release import Release
from world.served import Served, real
from world.waiting import eventually

pytestmark = pytest.mark.e2e

START_TIMEOUT_S = 240
FOLDER = "/var/cache/macroserve-model"


@pytest.fixture
def claim(kube: Kube) -> Iterator[Callable[[str, str], None]]:
    """Create the claim ``models`` of a node's folder; the arguments are the node and an image."""
    yield partial(_make_claim, kube)
    kube("delete", "persistentvolume", _volume(kube), "--ignore-not-found", "--wait=false")


def _volume(kube: Kube) -> str:
    return f"{kube.namespace}-models"


def _make_claim(kube: Kube, node: str, image: str) -> None:
    # World-writable, as kubelets do not change such a folder's group.
    path = f"/var/tmp/{kube.namespace}-{uuid.uuid4().hex[:8]}"
    mounted = {"name": "folder", "mountPath": "/folder"}
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "prepare"},
            "spec": {
                "nodeName": node,
                "restartPolicy": "Never",
                "securityContext": {"runAsUser": 0},
                "containers": [
                    {
                        "name": "prepare",
                        "image": image,
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["python", "-c", "import os; os.chmod('/folder', 0o777)"],
                        "volumeMounts": [mounted],
                    }
                ],
                "volumes": [
                    {"name": "folder", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
                ],
            },
        }
    )
    eventually(lambda: _phase(kube) == "Succeeded", 60, describe=lambda: kube("get", "pods"))
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    bound = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": _volume(kube)},
            "spec": {
                **bound,
                "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": path},
                "nodeAffinity": {
                    "required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}
                },
            },
        }
    )
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "models"},
            "spec": {
                **bound,
                "volumeName": _volume(kube),
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
    )


def _phase(kube: Kube) -> str:
    pod = kube.get("pod", "prepare") or {}
    return pod.get("status", {}).get("phase", "")


def starts(served: Served) -> list[dict[str, Any]]:
    return served.status.get("startup", {}).get("starts", [])


@pytest.mark.slow
def test_later_start_finds_what_another_one_fetched(
    kube: Kube, claim: Callable[[str, str], None], release: Release
) -> None:
    """A start without a cache, one that fills it, and one that finds it filled."""
    hub = HubPod(kube, release.image("engine"))
    hub.start()
    template = {
        "spec": {
            "containers": [{"name": "engine", "env": [{"name": "HF_ENDPOINT", "value": hub.url}]}]
        }
    }
    model = {"source": REPOSITORY, "servedName": "tiny-llama", "maxModelLen": 2048}
    served = Served(kube, real("cached"))

    def measured(count: int) -> tuple[dict[str, Any], int]:
        """Return the last of ``count`` starts, and the number of fetches of the weights so far."""
        found = eventually(
            lambda: starts(served) if len(starts(served)) == count else [],
            START_TIMEOUT_S,
            describe=served.describe,
            every_s=1,
        )
        return found[-1], hub.num_fetched("model.safetensors")

    served.apply(model=model, template=template)
    alone, num_alone = measured(1)
    (pod,) = served.pods()
    claim(pod["spec"]["nodeName"], release.image("engine"))
    served.apply(model={**model, "cache": {"claim": "models"}})
    filling, num_filling = measured(2)
    # All pods have the new template before one is added.
    served.wait_for_instances(1)
    served.scale(2)
    found, num_found = measured(3)
    for what, start in (("no cache", alone), ("fills it", filling), ("finds it", found)):
        print(f"{what}: {start}")
    assert (num_alone, num_filling, num_found) == (1, 2, 2)
    assert [start["warm"] for start in (alone, filling, found)] == [False, False, True]
    assert found["seconds"] < filling["seconds"]
    startup = served.status["startup"]
    assert (startup["cold"]["samples"], startup["warm"]["samples"]) == (2, 1)
    assert startup["p90Seconds"] == max(start["seconds"] for start in startup["starts"])
    (ready,) = [pod for pod in served.pods() if pod["metadata"]["uid"] == found["pod"]]
    (init,) = ready["spec"]["initContainers"]
    assert FOLDER in [mount["mountPath"] for mount in init["volumeMounts"]]
    # Kubernetes reports a pod Ready within two probes of the measured time.
    assert abs(_ready_after_s(ready) - found["seconds"]) <= 10
    served.complete()


def _ready_after_s(pod: dict[str, Any]) -> float:
    (ready,) = [each for each in pod["status"]["conditions"] if each["type"] == "Ready"]
    times = (ready["lastTransitionTime"], pod["metadata"]["creationTimestamp"])
    until, since = (datetime.fromisoformat(time) for time in times)
    return (until - since).total_seconds()
