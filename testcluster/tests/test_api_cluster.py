"""The API tier is Kubernetes as its users know it, and leaves nothing behind."""

import base64
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from unittest import SkipTest

import pytest
from cluster import (
    ApiCluster,
    ClusterError,
    KubectlError,
    UnsupportedError,
    binaries,
    places,
    ports,
)
from cluster.pki import Authority
from cluster.processes import wait_until

pytestmark = pytest.mark.integration

TESTCLUSTER = Path(__file__).parents[1]
CRD = Path(__file__).with_name("things.yaml")


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApiCluster]:
    with ApiCluster(controllers=True) as cluster:
        cluster.apply_crd(CRD)
        yield cluster


@pytest.fixture
def namespace(cluster: ApiCluster, request: pytest.FixtureRequest) -> str:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:60]
    cluster.kubectl("create", "namespace", name)
    return name


def thing(name: str = "a", low: int = 1, high: int = 2) -> str:
    return json.dumps(
        {
            "apiVersion": "example.io/v1",
            "kind": "Thing",
            "metadata": {"name": name},
            "spec": {"low": low, "high": high},
        }
    )


def processes_of(folder: Path) -> list[str]:
    listed = subprocess.run(["ps", "-wweo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if str(folder) in line]


def test_api_cluster_applies_rules_across_fields(cluster: ApiCluster, namespace: str) -> None:
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=thing())
    with pytest.raises(KubectlError, match="low must not be above high"):
        cluster.kubectl("-n", namespace, "apply", "-f", "-", input=thing(low=3))


def test_api_cluster_explains_fields(cluster: ApiCluster) -> None:
    def is_explained() -> bool:
        # The API server collects explanations in the background.
        try:
            return "The lower end of it." in cluster.kubectl("explain", "things.spec.low")
        except KubectlError:
            return False

    wait_until(is_explained, "the field is explained", 30)


def test_api_cluster_checks_rights_and_records_requests(
    cluster: ApiCluster, namespace: str
) -> None:
    with pytest.raises(KubectlError, match="cannot list resource"):
        cluster.kubectl("-n", namespace, "--as=eve", "get", "things")
    cluster.kubectl("-n", namespace, "create", "role", "r", "--verb=list", "--resource=things")
    cluster.kubectl("-n", namespace, "create", "rolebinding", "r", "--role=r", "--user=eve")
    wait_until(
        lambda: (
            cluster.kubectl("-n", namespace, "auth", "can-i", "list", "things", "--as=eve").strip()
            == "yes"
        ),
        "the right is known",
        10,
    )
    cluster.kubectl("-n", namespace, "--as=eve", "get", "things")
    events = map(json.loads, cluster.audit_log.read_text().splitlines())
    asked = {
        (event["verb"], event["objectRef"]["resource"], event["responseStatus"]["code"])
        for event in events
        if event.get("impersonatedUser", {}).get("username") == "eve"
        and event.get("objectRef", {}).get("namespace") == namespace
    }
    assert {("list", "things", 403), ("list", "things", 200)} <= asked


def test_api_cluster_calls_webhooks(cluster: ApiCluster, namespace: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "webhook-ca")
    pair = authority.server("webhook", ["IP:127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    (port,) = ports.free("127.0.0.1", 1)
    server = HTTPServer(("127.0.0.1", port), Refusal)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cluster.kubectl("apply", "-f", "-", input=webhook(port, authority, namespace))
    cluster.kubectl("label", "namespace", namespace, "guarded=yes")

    def is_asked() -> bool:
        try:
            cluster.kubectl("-n", namespace, "apply", "-f", "-", input=thing())
        except KubectlError as error:
            return "not on a Friday" in error.stderr
        return False

    try:
        wait_until(is_asked, "the webhook is asked", 20, every_s=0.5)
    finally:
        cluster.kubectl("delete", "validatingwebhookconfiguration", namespace)
        server.shutdown()
        server.server_close()


class Refusal(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        review["response"] = {
            "uid": review["request"]["uid"],
            "allowed": False,
            "status": {"message": "not on a Friday"},
        }
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def webhook(port: int, authority: Authority, namespace: str) -> str:
    hook = {
        "name": "refusal.example.io",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "namespaceSelector": {"matchLabels": {"guarded": "yes"}},
        "clientConfig": {
            "url": f"https://127.0.0.1:{port}/validate",
            "caBundle": base64.b64encode(authority.certificate.read_bytes()).decode(),
        },
        "rules": [
            {
                "apiGroups": ["example.io"],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["things"],
            }
        ],
    }
    return json.dumps(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": namespace},
            "webhooks": [hook],
        }
    )


def test_namespace_when_deleted_takes_its_objects_along(
    cluster: ApiCluster, namespace: str
) -> None:
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=thing())
    cluster.kubectl("delete", "namespace", namespace, "--timeout=60s")
    cluster.kubectl("create", "namespace", namespace)
    assert cluster.kubectl("-n", namespace, "get", "things", "-o", "name") == ""


def test_pods_without_a_node_can_be_created_and_deleted(
    cluster: ApiCluster, namespace: str
) -> None:
    cluster.kubectl("-n", namespace, "run", "pod", "--image=registry.local/none:1")
    cluster.kubectl("-n", namespace, "delete", "pod", "pod", "--timeout=20s")


def test_resources_outlive_the_api_server(cluster: ApiCluster, namespace: str) -> None:
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=thing())
    cluster.stop_apiserver()
    with pytest.raises(KubectlError, match="refused"):
        cluster.kubectl("get", "namespaces")
    cluster.start_apiserver()
    assert cluster.kubectl("-n", namespace, "get", "things", "-o", "name").split() == [
        "thing.example.io/a"
    ]
    with pytest.raises(KubectlError, match="low must not be above high"):
        cluster.kubectl("-n", namespace, "apply", "-f", "-", input=thing(low=3))


def test_deleted_crd_leaves_nothing_to_find(cluster: ApiCluster, namespace: str) -> None:
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=thing())
    cluster.kubectl("delete", "-f", str(CRD), "--timeout=30s")
    wait_until(
        lambda: "example.io" not in cluster.kubectl("get", "apiservices"), "it is forgotten", 20
    )
    cluster.apply_crd(CRD)
    assert cluster.kubectl("-n", namespace, "get", "things", "-o", "name") == ""


@pytest.mark.parametrize(
    "act",
    [
        lambda cluster: cluster.import_image(Path("image.tar")),
        lambda cluster: cluster.kill_kubelet("node1"),
        lambda cluster: cluster.start_kubelet("node1"),
        lambda cluster: cluster.fake_gpus("node1", 1),
        lambda cluster: cluster.kill_pod("default", "pod"),
        lambda cluster: cluster.service_address("default", "kubernetes"),
    ],
    ids=[
        *("import_image", "kill_kubelet", "start_kubelet", "fake_gpus"),
        *("kill_pod", "service_address"),
    ],
)
def test_api_cluster_that_lacks_a_capability_skips_the_test(cluster: ApiCluster, act) -> None:
    with pytest.raises(UnsupportedError, match="this cluster cannot") as raised:
        act(cluster)
    assert isinstance(raised.value, SkipTest)


def test_api_clusters_at_the_same_time_are_separate(cluster: ApiCluster) -> None:
    with ApiCluster() as other:
        folder = other.directory
        other.kubectl("create", "namespace", "theirs")
        assert "theirs" not in cluster.kubectl("get", "namespaces")
        assert len(processes_of(folder)) >= 4
    assert processes_of(folder) == []
    assert not folder.exists()


def test_api_cluster_whose_owner_is_killed_leaves_no_process(tmp_path: Path) -> None:
    script = (
        "import time; from cluster import ApiCluster\n"
        "with ApiCluster() as cluster:\n"
        "    print(cluster.directory, flush=True); time.sleep(100)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(TESTCLUSTER), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    with owner.stdout as told:
        folder = Path(told.readline().strip())
    assert len(processes_of(folder)) >= 4
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_until(lambda: processes_of(folder) == [], "all are gone", 10)


def test_api_cluster_of_a_releases_binaries_serves_crds_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("etcd", "kube-apiserver", "kubectl"):
        (tmp_path / name).symlink_to(binaries.find() / name)
    monkeypatch.setenv("KUBERNETES_BINARIES", str(tmp_path))
    crd = tmp_path / "things.yaml"
    # The API server is too old for rules.
    crd.write_text(CRD.read_text().partition("              x-kubernetes-validations")[0])
    with ApiCluster() as cluster:
        cluster.apply_crd(crd)
        assert "created" in cluster.kubectl("apply", "-f", "-", input=thing(low=3))
        cluster.stop_apiserver()
        cluster.start_apiserver()
        assert "thing.example.io/a" in cluster.kubectl("get", "things", "-o", "name")


def test_api_cluster_without_binaries_names_the_command_that_builds_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(places, "cache", lambda: tmp_path)
    with pytest.raises(ClusterError, match="make cluster-build"), ApiCluster():
        pass
