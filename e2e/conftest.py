"""Fixtures: a cluster and a release of the chart for all tests, a namespace for each.

The cluster is built here, created by kind with ``CLUSTER=kind``, or with ``CLUSTER=given`` that of
KUBECONFIG, with images named by IMAGES (``PREFIX:TAG``). The mark ``needs`` lists the capabilities
that a case needs; it is skipped on a cluster that lacks one.

Resources, events and logs of failed tests are written to ``build/e2e/``.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cluster import Capability, Cluster, GivenCluster, KindCluster, NodeCluster
from images import build_engine_image, build_operator_image
from world.kube import Kube
from world.release import NAMESPACE, Release, image_values
from world.served import Served, emulated

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "e2e"

CLUSTERS = {"built": NodeCluster, "kind": KindCluster, "given": GivenCluster}
CLUSTER = CLUSTERS.get(os.environ.get("CLUSTER") or "built")
if CLUSTER is None:
    raise pytest.UsageError(f"CLUSTER must be one of {', '.join(CLUSTERS)}")
VALUES = Path(__file__).with_name("values.yaml")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if CLUSTER is NodeCluster and os.geteuid() != 0:
        pytest.skip("a cluster of real nodes needs root")
    with CLUSTER() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def release(cluster: Cluster) -> Iterator[Release]:
    """The installed release; a test that changes it restores it."""
    if Capability.IMPORT_IMAGES in cluster.capabilities:
        for image in (build_operator_image(), build_engine_image()):
            cluster.import_image(image)
        values = yaml.safe_load(VALUES.read_text())
    else:
        values = image_values(os.environ.get("IMAGES", ""))
    cluster.apply_crd(ROOT / "crds" / "macroinstances.yaml")
    release = Release(cluster, values)
    release.install()
    yield release
    if CLUSTER is GivenCluster:
        release.uninstall()
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
def operator(cluster: Cluster, release: Release) -> Kube:
    """The operator's namespace."""
    return Kube(cluster, NAMESPACE)


@pytest.fixture
def kube(cluster: Cluster, operator: Kube, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """A namespace for the test, deleted afterwards."""
    kube = Kube(cluster, f"e2e-{_name(request.node)}")
    cluster.kubectl("create", "namespace", kube.namespace)
    yield kube
    if _has_failed(request.node):
        _keep_traces(request.node, kube, operator)
    kube("delete", "macroinstances", "--all", "--timeout=120s")
    # Without waiting, which may take minutes; the name is not reused.
    cluster.kubectl("delete", "namespace", kube.namespace, "--wait=false")


@pytest.fixture
def fresh(kube: Kube) -> Served:
    """A Ready MacroInstance of three emulated instances for the test alone."""
    return _three_instances(kube)


@pytest.fixture(scope="session")
def standing(cluster: Cluster, release: Release) -> Iterator[Kube]:
    """The namespace of the MacroInstance that several tests use."""
    kube = Kube(cluster, "e2e-standing")
    cluster.kubectl("create", "namespace", kube.namespace)
    yield kube
    if CLUSTER is GivenCluster:
        kube("delete", "macroinstances", "--all", "--timeout=120s")
        cluster.kubectl("delete", "namespace", kube.namespace, "--wait=false")


@pytest.fixture
def served(standing: Kube, operator: Kube, request: pytest.FixtureRequest) -> Iterator[Served]:
    """A Ready MacroInstance of three emulated instances, reused unless the previous test failed."""
    served = _three_instances(standing)
    yield served
    if _has_failed(request.node):
        _keep_traces(request.node, standing, operator)
        standing("delete", "macroinstances", "--all", "--timeout=120s")


def _three_instances(kube: Kube) -> Served:
    served = Served(kube, emulated("llama"))
    served.apply()
    served.wait_for_instances(3)
    return served


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*capabilities): what a case needs of its cluster")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run cases with another cluster first: only one built cluster can run at a time."""
    items.sort(key=_uses_cluster)
    for item in items:
        if reason := _reason_to_skip(item):
            item.add_marker(pytest.mark.skip(reason=reason))


def _uses_cluster(item: pytest.Item) -> bool:
    return "cluster" in getattr(item, "fixturenames", ())


def _reason_to_skip(item: pytest.Item) -> str:
    """Return why a case cannot run on this kind of cluster, or an empty text."""
    for mark in item.iter_markers("needs"):
        for capability in mark.args:
            if capability not in CLUSTER.capabilities:
                return f"this cluster cannot {capability}"
    if CLUSTER is not NodeCluster and not _uses_cluster(item):
        return "this case is about the built cluster alone"
    return ""


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


def _has_failed(item: pytest.Item) -> bool:
    return item.stash.get(FAILED, False)


def _name(item: pytest.Item) -> str:
    """Return a name of at most 50 characters that differs between the cases of a test."""
    function, _, case = item.name.removeprefix("test_").lower().partition("[")
    parts = [re.sub("[^a-z0-9]+", "-", part).strip("-") for part in (function[:34], case[-16:])]
    return "-".join(filter(None, parts))


def _keep_traces(item: pytest.Item, *namespaces: Kube) -> None:
    for kube in namespaces:
        into = OUTPUT / _name(item) / kube.namespace
        into.mkdir(parents=True, exist_ok=True)
        (into / "describe.txt").write_text(kube("describe", "macroinstances,pods,deployments"))
        (into / "events.txt").write_text(kube("get", "events", "--sort-by=.lastTimestamp"))
        for pod in kube.items("pods"):
            name = pod["metadata"]["name"]
            for suffix, option in (("", ()), (".previous", ("--previous",))):
                try:
                    log = kube("logs", name, "--all-containers", *option)
                except Exception:
                    # A container without a start, or without a restart, has no such log.
                    continue
                (into / f"{name}{suffix}.log").write_text(log)
