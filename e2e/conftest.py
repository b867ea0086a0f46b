"""One cluster, one release of the chart and a namespace for each test.

What a failed test leaves to look at (resources, events, logs) goes to ``build/e2e/``.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import NodeCluster
from images import build_engine_image, build_operator_image
from world.kube import Kube
from world.release import NAMESPACE, Release
from world.served import Served, emulated

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "e2e"

VALUES = {
    "operator": {"image": {"repository": "registry.local/macroserve/operator", "tag": "e2e"}},
    "engine": {"image": {"repository": "registry.local/macroserve/engine", "tag": "e2e"}},
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[NodeCluster]:
    if os.geteuid() != 0:
        pytest.skip("a cluster of real nodes needs root")
    with NodeCluster() as nodes:
        yield nodes


@pytest.fixture(scope="session")
def release(cluster: NodeCluster) -> Release:
    """Installed; a test that changes it puts it back."""
    for image in (build_operator_image(), build_engine_image()):
        cluster.import_image(image)
    cluster.apply_crd(ROOT / "crds" / "macroinstances.yaml")
    release = Release(cluster.kubeconfig, VALUES)
    release.install()
    return release


@pytest.fixture
def operator(cluster: NodeCluster, release: Release) -> Kube:
    """The operator's own namespace."""
    return Kube(cluster.kubectl, NAMESPACE)


@pytest.fixture
def kube(cluster: NodeCluster, operator: Kube, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """A namespace for the test, gone afterwards with all that is in it."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:50].strip(
        "-"
    )
    kube = Kube(cluster.kubectl, name)
    cluster.kubectl("create", "namespace", name)
    yield kube
    if request.node.stash.get(FAILED, False):
        _keep_traces(OUTPUT / name, kube, operator)
    kube("delete", "macroinstances", "--all", "--timeout=120s")
    # Nothing uses the name again, and Kubernetes may look after minutes whether all is gone.
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def served(kube: Kube) -> Served:
    """Three emulated instances, Ready."""
    served = Served(kube, emulated("llama"))
    served.apply()
    served.wait_for_condition("Ready")
    served.wait_for_instances(3)
    return served


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Only one cluster of nodes can be up: tests that start one themselves come first."""
    items.sort(key=lambda item: "cluster" in getattr(item, "fixturenames", ()))


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


def _keep_traces(folder: Path, *namespaces: Kube) -> None:
    for kube in namespaces:
        into = folder / kube.namespace
        into.mkdir(parents=True, exist_ok=True)
        (into / "describe.txt").write_text(kube("describe", "macroinstances,pods,deployments"))
        (into / "events.txt").write_text(kube("get", "events", "--sort-by=.lastTimestamp"))
        for pod in kube.items("pods"):
            name = pod["metadata"]["name"]
            for suffix, option in (("", ()), (".previous", ("--previous",))):
                try:
                    log = kube("logs", name, "--all-containers", *option)
                except Exception:
                    # A container that has not started, or was never restarted, has no log.
                    continue
                (into / f"{name}{suffix}.log").write_text(log)
