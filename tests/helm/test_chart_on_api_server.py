"""The chart is installed on a real API server without nodes.

Its pods never run, so nothing waits for them, and the hook that an uninstall would run is off.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml
from cluster import ApiCluster, KubectlError
from support.chart import CHART, NAMESPACE, ROOT, Object

pytestmark = pytest.mark.integration

EXAMPLES = sorted((ROOT / "manifests").glob("*.yaml"))
PLAIN = ROOT / "manifests" / "operator"
VALUES = {"uninstall": {"releaseFinalizers": False}}
OPERATOR = f"system:serviceaccount:{NAMESPACE}:macroserve-operator"

MONITORING_KINDS = {
    "ServiceMonitor": "servicemonitors",
    "PodMonitor": "podmonitors",
    "PrometheusRule": "prometheusrules",
}


RIGHTS = [
    ("watch", "macroinstances.macroserve.io", "tenant", True),
    ("patch", "macroinstances.macroserve.io:status", "tenant", True),
    ("create", "pods", "tenant", True),
    ("delete", "pods", "tenant", True),
    ("get", "secrets", "tenant", True),
    ("create", "leases.coordination.k8s.io", NAMESPACE, True),
    ("update", "leases.coordination.k8s.io/macroserve-operator", NAMESPACE, True),
    ("create", "leases.coordination.k8s.io", "tenant", False),
    ("update", "leases.coordination.k8s.io/another", NAMESPACE, False),
    ("list", "secrets", "tenant", False),
    ("delete", "secrets", "tenant", False),
    ("update", "macroinstances.macroserve.io", "tenant", False),
    ("delete", "macroinstances.macroserve.io", "tenant", False),
    ("create", "pods:exec", "tenant", False),
    ("get", "nodes", "tenant", False),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io", "tenant", False),
    ("impersonate", "users", "tenant", False),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApiCluster]:
    with ApiCluster() as cluster:
        yield cluster


@pytest.fixture
def config(cluster: ApiCluster) -> Iterator[helm.Config]:
    with helm.Config(kubeconfig_path=cluster.kubeconfig, namespace=NAMESPACE) as config:
        yield config


@pytest.fixture
def release(config: helm.Config) -> Iterator[helm.Config]:
    try:
        config.install(CHART, "macroserve", VALUES, create_namespace=True)
        yield config
    finally:
        config.uninstall("macroserve", ignore_not_found=True)


def get(cluster: ApiCluster, kind: str, name: str) -> Object | None:
    found = cluster.kubectl(
        *("get", kind, name, "-n", NAMESPACE, "-o", "json", "--ignore-not-found")
    )
    return json.loads(found) if found else None


def may(cluster: ApiCluster, verb: str, resource: str, namespace: str) -> bool:
    """Tell whether the operator has this right. `resource` may have a subresource, as in
    ``pods:exec``, or a name, as in ``pods/one``."""
    resource, _, subresource = resource.partition(":")
    question = (verb, resource, f"--subresource={subresource}", f"--as={OPERATOR}")
    try:
        answer = cluster.kubectl("auth", "can-i", *question, "-n", namespace)
    except KubectlError as error:
        answer = error.stdout
    return answer.strip() == "yes"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_crd_accepts_each_example(cluster: ApiCluster, path: Path) -> None:
    cluster.apply_crd(CHART / "crds" / "macroinstances.yaml")
    assert "created" in cluster.kubectl("create", "-f", str(path))
    cluster.kubectl("delete", "-f", str(path))


def test_install_creates_the_kinds_that_the_server_knows(
    cluster: ApiCluster, release: helm.Config
) -> None:
    assert release.status("macroserve")["status"] == "deployed"
    # policy/v1 came with Kubernetes 1.21.
    budget = cluster.kubectl("get", "pdb", "macroserve-operator", "-n", NAMESPACE, "-o", "name")
    assert budget.strip() == "poddisruptionbudget.policy/macroserve-operator"
    assert get(cluster, "crd", "macroinstances.macroserve.io")
    for kind in ("networkpolicy", "deployment", "service"):
        assert get(cluster, kind, "macroserve-operator")
    assert "servicemonitors" not in cluster.kubectl("api-resources")


def test_upgrades_keep_certificate_and_token(cluster: ApiCluster, release: helm.Config) -> None:
    def secrets() -> list[Any]:
        names = ("macroserve-operator-webhook", "macroserve-operator-alerts")
        return [(get(cluster, "secret", name) or {})["data"] for name in names]

    def bundles() -> list[str]:
        found = get(cluster, "validatingwebhookconfiguration", "macroserve-operator") or {}
        return [webhook["clientConfig"]["caBundle"] for webhook in found["webhooks"]]

    before = secrets(), bundles()
    release.upgrade(CHART, "macroserve", {**VALUES, "operator": {"replicas": 3}})
    assert (secrets(), bundles()) == before
    assert before[1] == [before[0][0]["ca.crt"]] * 2
    deployment = get(cluster, "deployment", "macroserve-operator")
    assert deployment and deployment["spec"]["replicas"] == 3
    release.rollback("macroserve")
    deployment = get(cluster, "deployment", "macroserve-operator")
    assert deployment and deployment["spec"]["replicas"] == 2
    assert (secrets(), bundles()) == before


def test_second_release_is_refused(cluster: ApiCluster, release: helm.Config) -> None:
    with (
        helm.Config(kubeconfig_path=cluster.kubeconfig, namespace="another") as another,
        pytest.raises(helm.HelmError, match="exists and cannot be imported"),
    ):
        another.install(CHART, "macroserve", VALUES, create_namespace=True)


def test_manifest_without_an_operator_is_accepted_only_if_failures_are_ignored(
    cluster: ApiCluster, release: helm.Config
) -> None:
    example = str(ROOT / "manifests" / "emulated.yaml")
    with pytest.raises(KubectlError) as refused:
        cluster.kubectl("create", "-f", example)
    assert 'calling webhook "macroinstances.macroserve.io"' in refused.value.stderr
    release.upgrade(CHART, "macroserve", {**VALUES, "webhook": {"failurePolicy": "Ignore"}})
    assert "created" in cluster.kubectl("create", "-f", example)
    cluster.kubectl("delete", "-f", example)


def test_macroinstances_outlive_the_operator(cluster: ApiCluster, config: helm.Config) -> None:
    config.install(CHART, "macroserve", VALUES, create_namespace=True)
    config.uninstall("macroserve")
    example = str(ROOT / "manifests" / "emulated.yaml")
    assert "created" in cluster.kubectl("create", "-f", example)
    config.install(CHART, "macroserve", VALUES)
    config.uninstall("macroserve")
    assert "emulated" in cluster.kubectl("get", "macroinstances")
    cluster.kubectl("delete", "-f", example)
    for kind in ("clusterrole", "validatingwebhookconfiguration", "deployment"):
        assert get(cluster, kind, "macroserve-operator") is None


def test_operator_with_its_service_account_may_do_what_it_needs_alone(
    cluster: ApiCluster, release: helm.Config
) -> None:
    for verb, resource, namespace, allowed in RIGHTS:
        assert may(cluster, verb, resource, namespace) is allowed, f"{verb} {resource}"


def test_monitors_come_with_the_prometheus_operators_kinds(
    cluster: ApiCluster, release: helm.Config, tmp_path: Path
) -> None:
    path = tmp_path / "monitoring.yaml"
    path.write_text(yaml.safe_dump_all(map(_definition, MONITORING_KINDS)))
    cluster.apply_crd(path)
    try:
        # What the cluster knows is looked up once for each of these.
        with helm.Config(kubeconfig_path=cluster.kubeconfig, namespace=NAMESPACE) as fresh:
            fresh.upgrade(CHART, "macroserve", VALUES)
        names = cluster.kubectl(*("get", ",".join(MONITORING_KINDS), "-n", NAMESPACE, "-o", "name"))
        assert "servicemonitor.monitoring.coreos.com/macroserve-operator" in names
        assert "podmonitor.monitoring.coreos.com/macroserve-ingress" in names
        assert "podmonitor.monitoring.coreos.com/macroserve-instance" in names
        for rules in CHART.glob("rules/*.yaml"):
            assert f"prometheusrule.monitoring.coreos.com/macroserve-{rules.stem}" in names
        assert get(cluster, "configmap", "macroserve-dashboard")
        plain = (PLAIN / "monitoring.yaml").read_text()
        cluster.kubectl("apply", "-f", "-", input=plain.replace(NAMESPACE, "default"))
    finally:
        release.uninstall("macroserve")
        cluster.kubectl("delete", "-f", str(path))


@pytest.fixture(scope="module")
def plain(cluster: ApiCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the plain YAML in force. Its namespace never ends here, so tests share it."""
    folder = shutil.copytree(PLAIN, tmp_path_factory.mktemp("plain") / "operator")
    operator = folder / "operator.yaml"
    if "policy/v1" not in cluster.kubectl("api-versions").split():
        # An old server; the chart would have looked this up.
        operator.write_text(operator.read_text().replace("policy/v1\n", "policy/v1beta1\n"))
    subprocess.run([folder / "secrets.sh"], check=True, capture_output=True)
    cluster.kubectl("apply", "-k", str(folder))
    return folder


def test_plain_yaml_with_its_secrets_is_accepted(cluster: ApiCluster, plain: Path) -> None:
    secret = get(cluster, "secret", "macroserve-operator-webhook")
    webhooks = get(cluster, "validatingwebhookconfiguration", "macroserve-operator")
    assert secret and webhooks
    for webhook in webhooks["webhooks"]:
        assert webhook["clientConfig"]["caBundle"] == secret["data"]["ca.crt"]
    assert may(cluster, "create", "pods", "tenant")


def test_plain_yaml_when_removed_as_documented_releases_macroinstances(
    cluster: ApiCluster, plain: Path
) -> None:
    cluster.apply_crd(CHART / "crds" / "macroinstances.yaml")
    webhook = get(cluster, "validatingwebhookconfiguration", "macroserve-operator")
    cluster.kubectl("delete", "validatingwebhookconfiguration", "macroserve-operator")
    cluster.kubectl("create", "-f", str(ROOT / "manifests" / "emulated.yaml"))
    patch = json.dumps({"metadata": {"finalizers": ["macroserve.io/drain"]}})
    cluster.kubectl("patch", "mi", "emulated", "--type=merge", "-p", patch)
    cluster.kubectl("apply", "-f", "-", input=json.dumps(webhook))

    said = (plain / "kustomization.yaml").read_text().partition("To take the operator away")[2]
    for command in re.findall(r"^#   kubectl (.+)$", said, re.MULTILINE):
        arguments = command.replace("manifests/operator", str(plain)).split()
        if "wait" in arguments:  # Here no node runs the Job.
            release = [sys.executable, "-m", "macroserve.operator.apply.remove_finalizers"]
            subprocess.run(release, env={"KUBECONFIG": str(cluster.kubeconfig)}, check=True)
        else:
            cluster.kubectl(*arguments, *(["--wait=false"] if "delete" in arguments else []))
    found = json.loads(cluster.kubectl("get", "mi", "emulated", "-o", "json"))
    assert not found["metadata"].get("finalizers")
    assert get(cluster, "deployment", "macroserve-operator") is None


def _definition(kind: str) -> Object:
    plural = MONITORING_KINDS[kind]
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }
