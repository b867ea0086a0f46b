"""A whole MacroInstance runs: real API server, operator, head, ingress and emulated instances.

Only nodes are missing: a fake kubelet runs the pods as processes. While cells divide and merge
and the operator is killed, no request fails.
"""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from cluster import ApiCluster
from support import crd
from support.fake_kubelet import FakeKubelet
from support.operator_process import OperatorProcess, emulated, wait_for
from support.pods import own_network
from world.traffic import Traffic

from macroserve.api.keys import Purpose, derived_key

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

NAMESPACE = "team"
READY_S = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApiCluster]:
    with ApiCluster(controllers=True) as cluster:
        cluster.apply_crd(crd.PATH)
        cluster.kubectl("create", "namespace", NAMESPACE)
        yield cluster


@pytest.fixture
def kubelet(cluster: ApiCluster, tmp_path: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(cluster.kubeconfig, tmp_path, NAMESPACE, own_network()) as kubelet:
        yield kubelet


def status(cluster: ApiCluster) -> dict[str, Any]:
    found = cluster.kubectl("-n", NAMESPACE, "get", "mi", "llama", "-o", "yaml")
    return yaml.safe_load(found).get("status", {})


def is_settled(cluster: ApiCluster, sizes: list[int]) -> bool:
    """Return whether it is ready, with cells of these sizes and no action under way."""
    found = status(cluster)
    conditions = {c["type"]: c["status"] for c in found.get("conditions", ())}
    cells = sorted(cell["instances"] for cell in found.get("cells", ()))
    return (conditions.get("Ready"), conditions.get("Progressing"), cells) == (
        "True",
        "False",
        sizes,
    )


def scale(cluster: ApiCluster, instances: int) -> None:
    cluster.kubectl("-n", NAMESPACE, "scale", "mi/llama", f"--replicas={instances}")


def event_reasons(cluster: ApiCluster) -> set[str]:
    path = "jsonpath={.items[*].reason}"
    return set(cluster.kubectl("-n", NAMESPACE, "get", "events", "-o", path).split())


def test_cells_under_load_split_and_merge_while_the_operator_is_killed(
    cluster: ApiCluster, kubelet: FakeKubelet, tmp_path: Path
) -> None:
    document = emulated("llama", 3, ingress={"replicas": 1})
    document["spec"]["model"]["servedName"] = "tiny-llama"
    document["spec"]["engine"]["kvCacheMemory"] = "8GiB"
    with OperatorProcess(cluster.kubeconfig, tmp_path, "operator-0") as first:
        cluster.kubectl("-n", NAMESPACE, "apply", "-f", "-", input=yaml.safe_dump(document))
        wait_for(lambda: is_settled(cluster, [3]), "three instances serve", READY_S)
        endpoint = f"http://{kubelet.address('ingress')}:8000"
        models = httpx.get(f"{endpoint}/v1/models").json()["data"]
        assert [model["id"] for model in models] == ["tiny-llama"]
        with Traffic(endpoint) as traffic:
            traffic.after(5)
            scale(cluster, 6)
            wait_for(lambda: len(status(cluster)["cells"]) == 2, "a second cell", READY_S)
            first.kill()
            with OperatorProcess(cluster.kubeconfig, tmp_path, "operator-1"):
                wait_for(
                    lambda: is_settled(cluster, [2, 4]), "a cell of two beside a full one", READY_S
                )
                traffic.after(5)
                scale(cluster, 3)
                wait_for(lambda: is_settled(cluster, [3]), "one cell of three", READY_S)
                traffic.after(5)
                told = {"Split", "HandleMigrated", "Merged", "InstanceDraining", "InstanceRemoved"}
                assert told <= event_reasons(cluster)
                traffic.end()
                cluster.kubectl("-n", NAMESPACE, "delete", "mi", "llama", "--timeout=60s")
        assert traffic.failures == []
        assert traffic.complete == traffic.sent


def test_secret_changed_by_kubectl_is_adopted_and_no_request_fails(
    cluster: ApiCluster, kubelet: FakeKubelet, tmp_path: Path
) -> None:
    document = emulated("llama", 2, ingress={"replicas": 1})
    document["spec"]["model"]["servedName"] = "tiny-llama"
    document["spec"]["engine"]["kvCacheMemory"] = "8GiB"
    with OperatorProcess(cluster.kubeconfig, tmp_path, "operator-0"):
        cluster.kubectl("-n", NAMESPACE, "apply", "-f", "-", input=yaml.safe_dump(document))
        wait_for(lambda: is_settled(cluster, [2]), "two instances serve", READY_S)
        with Traffic(f"http://{kubelet.address('ingress')}:8000") as traffic:
            traffic.after(5)
            former = keys(cluster)
            patch = '{"stringData": {"secret": "of a person", "admin-token": "of a person, too"}}'
            cluster.kubectl("-n", NAMESPACE, "patch", "secret", "llama-tokens", "-p", patch)
            expected = [derived_key("of a person", Purpose.HANDLES), *former]
            wait_for(lambda: keys(cluster) == expected, "keys of both secrets", READY_S)
            # Orders with new keys reach parts that have yet to see them, and those that have.
            scale(cluster, 3)
            wait_for(lambda: is_settled(cluster, [3]), "three instances serve", READY_S)
            traffic.after(20)
            traffic.end()
        cluster.kubectl("-n", NAMESPACE, "delete", "mi", "llama", "--timeout=60s")
    assert traffic.failures == []
    assert traffic.complete == traffic.sent


def keys(cluster: ApiCluster) -> list[str]:
    """Return the keys that sign handles, the newest first."""
    path = "jsonpath={.data.key-handles}"
    found = cluster.kubectl("-n", NAMESPACE, "get", "secret", "llama-tokens", "-o", path)
    return base64.b64decode(found).decode().split()
