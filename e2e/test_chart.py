"""Installation, test, upgrade, rollback and removal of the chart, and of the plain YAML."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Capability, Cluster
from images import build_later_engine_image
from world.kube import Kube
from world.release import CHART, NAMESPACE, Release
from world.served import Served, emulated
from world.traffic import Traffic
from world.waiting import eventually

pytestmark = pytest.mark.e2e

PLAIN = CHART.parents[1] / "manifests" / "operator"
SECRETS = ("macroserve-operator-webhook", "macroserve-operator-alerts")
OF_THE_CLUSTER = ("clusterroles", "clusterrolebindings", "validatingwebhookconfigurations")
IN_NAMESPACE = (
    *("deployments", "jobs", "pods", "services", "configmaps", "secrets", "serviceaccounts"),
    *("roles", "rolebindings", "networkpolicies", "poddisruptionbudgets"),
)


def test_charts_own_test_passes(release: Release) -> None:
    log = release.test()
    assert log.count("ok  ") == 3, log
    assert "FAIL" not in log


def test_upgrade_and_its_rollback_lose_no_request(
    release: Release, served: Served, operator: Kube
) -> None:
    """The upgrade and the rollback both replace all pods of the operator."""
    values = {**release.values["operator"], "replicas": 3, "podAnnotations": {"test": "upgrade"}}
    secrets = [operator.get("secret", name) for name in SECRETS]
    pods = names(operator.items("pods"))
    with Traffic(served.endpoint) as traffic:
        traffic.after(5)
        release.upgrade({"operator": values, "webhook": {"timeoutSeconds": 7}})
        assert replicas(operator) == 3
        eventually(lambda: not pods & names(operator.items("pods")), 60)
        assert [operator.get("secret", name) for name in SECRETS] == secrets
        it_reviews(served.kube)
        traffic.after(5)
        release.rollback()
        assert replicas(operator) == 2
        assert [operator.get("secret", name) for name in SECRETS] == secrets
        it_reviews(served.kube)
        served.scale(4)
        served.wait_for_instances(4)
        traffic.after(5)
    assert not traffic.failures


@pytest.mark.slow
@pytest.mark.needs(Capability.IMPORT_IMAGES)
def test_upgrade_to_other_messages_loses_no_request(
    release: Release, kube: Kube, cluster: Cluster
) -> None:
    """Heads, ingresses and instances are replaced one after another by ones whose messages have
    unknown fields, values and kinds; then by the old ones again."""
    cluster.import_image(build_later_engine_image())
    served = Served(kube, emulated("rolled"))
    served.apply()
    served.wait_for_condition("Ready")
    image = release.values["engine"]["image"]
    with Traffic(served.endpoint, rate=2.0) as traffic:
        traffic.after(5)
        try:
            release.upgrade({"engine": {"image": {**image, "tag": "later"}}})
            eventually(lambda: images(served) == {f"{image['repository']}:later"}, 300)
            served.wait_for_instances(3)
            traffic.after(10)
        finally:
            release.rollback()
        eventually(lambda: images(served) == {f"{image['repository']}:{image['tag']}"}, 300)
        served.wait_for_instances(3)
        traffic.after(10)
    assert not traffic.failures


def images(served: Served) -> set[str]:
    """Return the images of all serving containers."""
    return {c["image"] for pod in served.all_pods() for c in pod["spec"]["containers"]}


def test_uninstall_leaves_only_what_serves(
    release: Release, served: Served, cluster: Cluster, operator: Kube
) -> None:
    before = of_the_chart(cluster, operator)
    assert len(before) > 10
    release.uninstall()
    try:
        eventually(lambda: not of_the_chart(cluster, operator), 60)
        assert cluster.kubectl("get", "crd", "macroinstances.macroserve.io", "-o", "name")
        assert not served.resource["metadata"].get("finalizers")
        assert served.complete()
    finally:
        release.install()
    assert of_the_chart(cluster, operator) == before
    eventually(lambda: served.resource["metadata"].get("finalizers"), 60)
    served.scale(4)
    served.wait_for_instances(4)


@pytest.fixture
def plain(release: Release, cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """The folder of the plain YAML in force, instead of the release."""
    folder = shutil.copytree(PLAIN, tmp_path / "operator")
    for file in (folder / "operator.yaml", folder / "release.yaml"):
        text = file.read_text()
        for part in ("operator", "engine"):
            text = re.sub(rf"macroserve/{part}:[0-9.]+", release.image(part), text)
        if "policy/v1" not in cluster.kubectl("api-versions").split():
            # An old cluster, for which the chart would choose this version.
            text = text.replace("policy/v1\n", "policy/v1beta1\n")
        file.write_text(text)
    subprocess.run([folder / "secrets.sh"], check=True, capture_output=True)
    release.uninstall()
    try:
        cluster.kubectl("delete", "namespace", NAMESPACE)
        cluster.kubectl("apply", "-k", str(folder))
        yield folder
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-k", str(folder))
        release.install()


@pytest.mark.slow
def test_plain_yaml_serves_and_can_be_removed(plain: Path, cluster: Cluster, kube: Kube) -> None:
    operator = Kube(cluster, NAMESPACE)
    operator("rollout", "status", "deployment/macroserve-operator", "--timeout=60s")
    it_reviews(kube)
    served = Served(kube, emulated("plain"))
    served.apply()
    served.wait_for_instances(3)
    assert served.complete()
    cluster.kubectl("delete", "validatingwebhookconfiguration", "macroserve-operator")
    operator("scale", "deployment/macroserve-operator", "--replicas=0")
    eventually(lambda: not operator.items("pods"), 60)
    cluster.kubectl("apply", "-f", str(plain / "release.yaml"))
    operator("wait", "--for=condition=Complete", "job/macroserve-release", "--timeout=60s")
    cluster.kubectl("delete", "-f", str(plain / "release.yaml"))
    assert not served.resource["metadata"].get("finalizers")
    assert served.complete()


def it_reviews(kube: Kube) -> None:
    wrong = emulated("wrong", mitosis={"lowerBound": 5, "upperBound": 6})
    # kube-proxy learns of the webhook's ready pods a moment after Helm does.
    eventually(lambda: "spec.mitosis.upperBound" in kube.refused(wrong), 30)


def replicas(operator: Kube) -> int:
    deployment = operator.get("deployment", "macroserve-operator")
    assert deployment is not None
    return deployment["status"]["availableReplicas"]


def names(objects: list[dict[str, Any]]) -> set[str]:
    return {found["metadata"]["name"] for found in objects}


def of_the_chart(cluster: Cluster, operator: Kube) -> set[str]:
    """Return kinds and names of the chart's objects, except pods."""
    found = []
    for kubectl, kinds in ((cluster.kubectl, OF_THE_CLUSTER), (operator, IN_NAMESPACE)):
        text = kubectl(
            "get", ",".join(kinds), "-o", "json", "-l", "app.kubernetes.io/part-of=macroserve"
        )
        found += json.loads(text)["items"]
    return {f"{each['kind']}/{each['metadata']['name']}" for each in found if each["kind"] != "Pod"}
