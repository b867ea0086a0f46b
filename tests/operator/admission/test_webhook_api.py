"""The operator with a real API server: its webhook refuses manifests that the CRD accepts, and a
condition reports those that bypassed it."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from bad_manifests import GOOD, Case, attempt, create, merged, refused_by
from cluster import ApiCluster, KubectlError
from cluster.pki import Authority
from support import crd
from world.waiting import eventually

pytestmark = pytest.mark.integration

PORT = 9443
TIMEOUT_S = 60.0
KOPF = (sys.executable, "-m", "kopf")
NUMBERS = count()
BROKEN = merged(GOOD, {"spec": {"engine": {"args": {"model": "x"}}}})
WHY = "spec.engine.args has the key 'model', which must be left out"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiCluster]:
    """Start a cluster with the operator and its webhook; older objects are in the namespace
    ``old``.
    """
    folder = tmp_path_factory.mktemp("webhook")
    with ApiCluster() as cluster:
        cluster.apply_crd(crd.PATH)
        cluster.kubectl("create", "namespace", "old")
        create(cluster.kubectl, "old", BROKEN)
        authority = Authority(folder, "webhook")
        authority.server("tls", ["IP:127.0.0.1"])
        with running_operator(cluster, folder):
            webhooks = json.dumps(configuration(authority))
            cluster.kubectl("create", "-f", "-", input=webhooks)
            eventually(lambda: WHY in refusal(cluster, "default", BROKEN), TIMEOUT_S)
            yield cluster


@contextmanager
def running_operator(cluster: ApiCluster, certificates: Path) -> Iterator[None]:
    environment = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "MACROSERVE_ENGINE_IMAGE": "registry.invalid/engine:1",
        "MACROSERVE_WEBHOOK_CERT_DIR": str(certificates),
    }
    command = [*KOPF, "run", "-A", "-m", "macroserve.operator.handlers"]
    log = certificates / "operator.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **environment}
        )
        try:
            yield
        except AssertionError as error:
            error.add_note(log.read_text())
            raise
        finally:
            process.terminate()
            process.wait(60)


def configuration(authority: Authority) -> dict[str, Any]:
    bundle = base64.b64encode(authority.certificate.read_bytes()).decode()

    def webhook(path: str, resource: str) -> dict[str, Any]:
        return {
            "name": f"{path}.macroserve.io",
            "clientConfig": {"url": f"https://127.0.0.1:{PORT}/{path}", "caBundle": bundle},
            "rules": [
                {
                    "apiGroups": ["macroserve.io"],
                    "apiVersions": ["v1alpha1"],
                    "operations": ["CREATE", "UPDATE"],
                    "resources": [resource],
                }
            ],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
        }

    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "macroserve"},
        "webhooks": [
            webhook("validate", "macroinstances"),
            webhook("validate-scale", "macroinstances/scale"),
        ],
    }


def refusal(cluster: ApiCluster, namespace: str, document: dict[str, Any]) -> str:
    """Return why the API server refuses the manifest; empty if it accepts it."""
    try:
        create(cluster.kubectl, namespace, document)
    except KubectlError as error:
        return error.stderr
    return ""


@pytest.mark.parametrize("case", refused_by("admission"), ids=str)
def test_webhook_refuses_a_bad_manifest(cluster: ApiCluster, case: Case) -> None:
    namespace = f"case-{next(NUMBERS)}"
    cluster.kubectl("create", "namespace", namespace)
    if case.before:
        create(cluster.kubectl, namespace, case.before)
    with pytest.raises(KubectlError) as refused:
        attempt(cluster.kubectl, namespace, case)
    assert case.missing_in(refused.value.stderr) == [], refused.value.stderr


def test_webhook_accepts_create_scale_and_change_of_a_good_manifest(cluster: ApiCluster) -> None:
    cluster.kubectl("create", "namespace", "good")
    create(cluster.kubectl, "good", GOOD)
    cluster.kubectl("-n", "good", "scale", "mi", "case", "--replicas=3")
    patch = json.dumps({"spec": {"slo": {"ttft": "1s"}}})
    cluster.kubectl("-n", "good", "patch", "mi", "case", "--type=merge", "-p", patch)


def test_manifest_that_passed_no_webhook_gets_a_condition(cluster: ApiCluster) -> None:
    def degraded() -> dict[str, Any]:
        found = json.loads(cluster.kubectl("-n", "old", "get", "mi", "case", "-o", "json"))
        conditions = found.get("status", {}).get("conditions", ())
        return next((c for c in conditions if c["type"] == "Degraded"), {"reason": ""})

    eventually(lambda: degraded()["reason"] == "InvalidSpec", TIMEOUT_S)
    assert WHY in degraded()["message"]
    # It can still be labeled, and mended.
    cluster.kubectl("-n", "old", "label", "mi", "case", "team=a")
    patch = json.dumps({"spec": {"engine": {"args": None}}})
    cluster.kubectl("-n", "old", "patch", "mi", "case", "--type=merge", "-p", patch)
    eventually(lambda: degraded()["reason"] != "InvalidSpec", TIMEOUT_S)
    described = cluster.kubectl("-n", "old", "describe", "mi", "case")
    assert "InvalidSpec" in described and WHY in described, "the event stays"
