"""The operator goes; what it made serves on, and nothing hangs afterwards."""

from collections.abc import Iterator

import pytest
from cluster import Cluster
from world.release import NAMESPACE, Release
from world.served import Served
from world.traffic import Traffic
from world.waiting import eventually

pytestmark = pytest.mark.e2e


@pytest.fixture
def uninstalled(served: Served, release: Release) -> Iterator[Served]:
    with Traffic(served.endpoint) as traffic:
        traffic.after(5)
        release.uninstall()
        try:
            traffic.after(20)
            yield served
        finally:
            release.install()
    assert not traffic.failures


def test_macroinstance_without_the_operator_serves_and_heals(
    uninstalled: Served, cluster: Cluster
) -> None:
    assert "No resources found" in cluster.kubectl(
        "-n", NAMESPACE, "get", "pods", "--ignore-not-found"
    ) or not cluster.kubectl("-n", NAMESPACE, "get", "pods", "-o", "name")
    (head,) = uninstalled.pods("head")
    uninstalled.kube("delete", "pod", head["metadata"]["name"])

    def rebuilt() -> bool:
        """Cell schedulers are back, with their instances: decisions are made by them again."""
        pods = uninstalled.pods("head")
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for pod in pods
            if pod["metadata"]["uid"] != head["metadata"]["uid"]
            for condition in pod["status"].get("conditions", [])
        )

    eventually(rebuilt, 90, describe=uninstalled.describe)
    assert uninstalled.complete()


def test_macroinstance_without_the_operator_can_be_deleted(uninstalled: Served) -> None:
    assert not uninstalled.resource["metadata"].get("finalizers")
