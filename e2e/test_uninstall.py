"""The operator's deployments keep serving without it, and can be deleted."""

from collections.abc import Iterator

import pytest
from world.kube import Kube
from world.pods import is_ready
from world.release import Release
from world.served import Served
from world.traffic import Traffic
from world.waiting import eventually

pytestmark = pytest.mark.e2e


@pytest.fixture
def uninstalled(served: Served, release: Release) -> Iterator[Served]:
    with Traffic(served.endpoint) as traffic:
        traffic.after(5)
        try:
            release.uninstall()
            traffic.after(20)
            yield served
        finally:
            release.install()
    assert not traffic.failures


def test_macroinstance_without_the_operator_serves_and_heals(
    uninstalled: Served, operator: Kube
) -> None:
    eventually(lambda: not operator.items("pods"), 60)
    (head,) = uninstalled.pods("head")
    uninstalled.kube("delete", "pod", head["metadata"]["name"])

    def rebuilt() -> bool:
        """Return whether another head is ready, with its cells."""
        pods = uninstalled.pods("head")
        return any(
            is_ready(pod) for pod in pods if pod["metadata"]["uid"] != head["metadata"]["uid"]
        )

    eventually(rebuilt, 90, describe=uninstalled.describe)
    assert uninstalled.complete()


def test_macroinstance_without_the_operator_has_no_finalizer(uninstalled: Served) -> None:
    assert not uninstalled.resource["metadata"].get("finalizers")
