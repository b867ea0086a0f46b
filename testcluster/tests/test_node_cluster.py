"""The cluster of nodes provides everything that the end-to-end tests use."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cluster import ClusterError, KubectlError, NodeCluster, network
from cluster.image_archive import ImageConfig, write_image, write_layer
from cluster.images import BUSYBOX
from cluster.pki import Authority
from cluster.processes import wait_until

pytestmark = pytest.mark.e2e

WAIT_S = 60.0
NODES = ("node1", "node2")
PROBE = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
SERVE = "mkdir /www; hostname > /www/index.html; exec httpd -f -p 8080 -h /www"
THINGS = Path(__file__).with_name("things.yaml")
Kubectl = Callable[..., str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[NodeCluster]:
    with NodeCluster() as cluster:
        yield cluster


@pytest.fixture
def kubectl(cluster: NodeCluster, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """Return kubectl in a namespace for the test."""
    name = request.node.name.removeprefix("test_").replace("_", "-")[:60].strip("-")
    cluster.kubectl("create", "namespace", name)

    def run(*arguments: str, input: Any = None) -> str:
        text = None if input is None else json.dumps(input)
        return cluster.kubectl("-n", name, *arguments, input=text)

    wait_until(
        lambda: "default" in run("get", "serviceaccounts", "-o", "name"), "its account", WAIT_S
    )
    yield run
    cluster.kubectl("delete", "namespace", name, "--timeout=60s")


def pod(name: str, command: str, node: str = "", **container: Any) -> dict[str, Any]:
    main = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", command], **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [main],
            "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
        },
    }


def deployment(name: str, replicas: int, command: str) -> dict[str, Any]:
    labels = {"app": name}
    template = pod(name, command, readinessProbe=PROBE)
    template["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": labels},
        }
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }


def service(name: str, selects: str, **spec: Any) -> dict[str, Any]:
    ports = [{"port": 80, "targetPort": 8080}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": selects}, "ports": ports, **spec},
    }


def server(name: str, node: str = "") -> dict[str, Any]:
    """Return a pod that answers requests with its host name, and then becomes ready."""
    return pod(name, SERVE, node, readinessProbe=PROBE)


def field(kubectl: Kubectl, what: str, path: str) -> str:
    return kubectl("get", *what.split("/"), "-o", f"jsonpath={{{path}}}")


def wait_for_pod(kubectl: Kubectl, name: str) -> None:
    kubectl("wait", f"pod/{name}", "--for=condition=Ready", f"--timeout={WAIT_S:.0f}s")


def reached(url: str) -> str:
    """Return the response of `url` to this machine, with retries until kube-proxy has updated the
    Service's pods."""
    with httpx.Client(transport=httpx.HTTPTransport(retries=6)) as client:
        return client.get(url).text.strip()


def reached_by(kubectl: Kubectl, caller: str, url: str) -> str:
    """Return the response of `url` to the pod `caller`, with the same retries."""
    tries = f"for _ in $(seq 50); do wget -qO- {url} && exit; sleep 0.2; done; exit 1"
    return kubectl("exec", caller, "--", "sh", "-c", tries).strip()


def on_each_node(kubectl: Kubectl, command: str = "sleep 1000") -> dict[str, str]:
    """Start a pod on each node; return their names by node."""
    for node in NODES:
        kubectl("apply", "-f", "-", input=pod(f"on-{node}", command, node))
    for node in NODES:
        wait_for_pod(kubectl, f"on-{node}")
    return {node: f"on-{node}" for node in NODES}


def test_deployment_is_spread_and_reached_from_everywhere(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=deployment("web", 3, SERVE))
    kubectl("apply", "-f", "-", input=service("web", "web"))
    kubectl("rollout", "status", "deployment/web", f"--timeout={WAIT_S:.0f}s")
    pods = json.loads(kubectl("get", "pods", "-o", "json"))["items"]
    assert {item["spec"]["nodeName"] for item in pods} == set(NODES)
    callers = on_each_node(kubectl)
    for item in pods:
        address, name = item["status"]["podIP"], item["metadata"]["name"]
        assert reached(f"http://{address}:8080") == name
        for caller in callers.values():
            assert reached_by(kubectl, caller, f"{address}:8080") == name
    address = field(kubectl, "service/web", ".spec.clusterIP")
    names = {item["metadata"]["name"] for item in pods}
    wait_until(
        lambda: {reached(f"http://{address}") for _ in range(40)} == names, "all answer", WAIT_S
    )
    assert reached_by(kubectl, "on-node1", "web") in names


def test_service_is_resolved_by_its_names_in_every_pod(kubectl: Kubectl) -> None:
    namespace = field(kubectl, "serviceaccount/default", ".metadata.namespace")
    kubectl("apply", "-f", "-", input=server("web"))
    kubectl("apply", "-f", "-", input=service("web", "web"))
    wait_for_pod(kubectl, "web")
    for caller in on_each_node(kubectl).values():
        for suffix in ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local"):
            assert reached_by(kubectl, caller, f"http://web{suffix}") == "web"
        with pytest.raises(KubectlError, match="bad address"):
            kubectl("exec", caller, "--", "wget", "-qO-", "http://none")


def test_headless_service_resolves_to_each_pod(kubectl: Kubectl) -> None:
    namespace = field(kubectl, "serviceaccount/default", ".metadata.namespace")
    kubectl("apply", "-f", "-", input=deployment("web", 3, SERVE))
    kubectl("apply", "-f", "-", input=deployment("sick", 2, "sleep 1000"))
    for name in ("web", "sick"):
        kubectl("apply", "-f", "-", input=service(name, name, clusterIP="None"))
    every = service("every", "sick", clusterIP="None", publishNotReadyAddresses=True)
    kubectl("apply", "-f", "-", input=every)
    callers = on_each_node(kubectl)
    kubectl("rollout", "status", "deployment/web", f"--timeout={WAIT_S:.0f}s")

    def addresses(app: str) -> set[str]:
        return set(field(kubectl, f"pods/-l/app={app}", ".items[*].status.podIP").split())

    def resolved(name: str, node: str) -> set[str]:
        domain = f"{name}.{namespace}.svc.cluster.local"
        answer = kubectl("exec", callers[node], "--", "sh", "-c", f"nslookup {domain} || true")
        lines = answer.partition("Name:")[2].splitlines()
        return {line.split()[-1] for line in lines if line.startswith("Address")}

    wait_until(lambda: len(addresses("sick")) == 2, "both have addresses", WAIT_S)
    for node in NODES:
        for name, app in (("web", "web"), ("every", "sick")):
            wait_until(
                lambda name=name, app=app, node=node: resolved(name, node) == addresses(app),
                f"{name} is known on {node}",
                5,
            )
        assert resolved("sick", node) == set(), "none of them is ready"

    kubectl("scale", "deployment/web", "--replicas=1")
    wait_until(lambda: len(addresses("web")) == 1, "two are gone", WAIT_S)
    began = time.monotonic()
    wait_until(lambda: resolved("web", "node2") == addresses("web"), "so are their names", 5)
    assert time.monotonic() - began < 2, "two kubectl calls and the DNS's delay"


def test_pods_reach_the_machine(kubectl: Kubectl) -> None:
    for caller in on_each_node(kubectl).values():
        connect = f"nc -w 3 {network.MACHINE} 6443 < /dev/null && echo connected"
        assert kubectl("exec", caller, "--", "sh", "-c", connect).strip() == "connected"


def test_container_without_memory_left_is_killed(kubectl: Kubectl) -> None:
    limits = {"limits": {"memory": "16Mi"}}
    kubectl("apply", "-f", "-", input=pod("hog", "tail /dev/zero", resources=limits))
    state = ".status.containerStatuses[0].lastState.terminated.reason"
    wait_until(lambda: field(kubectl, "pod/hog", state) == "OOMKilled", "it is killed", WAIT_S)


def test_gpus_are_assigned_to_one_pod_each(cluster: NodeCluster, kubectl: Kubectl) -> None:
    for node in NODES:
        cluster.fake_gpus(node, 1)
    wants = {"limits": {"nvidia.com/gpu": "1"}}
    for name in ("first", "second", "third"):
        kubectl("apply", "-f", "-", input=pod(name, "sleep 1000", resources=wants))
    wait_for_pod(kubectl, "first")
    wait_for_pod(kubectl, "second")
    message = field(kubectl, "pod/third", ".status.conditions[0].message")
    assert "Insufficient nvidia.com/gpu" in message
    node = field(kubectl, "pod/first", ".spec.nodeName")
    cluster.kill_kubelet(node)
    cluster.start_kubelet(node)
    kubectl("delete", "pod", "first")
    wait_for_pod(kubectl, "third")
    assert field(kubectl, "pod/third", ".spec.nodeName") == node


def test_lost_node_is_noticed_and_comes_back(cluster: NodeCluster, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=server("web", "node2"))
    wait_for_pod(kubectl, "web")
    address = field(kubectl, "pod/web", ".status.podIP")
    cluster.kill_kubelet("node2")
    try:
        cluster.kubectl("wait", "node/node2", "--for=condition=Ready=Unknown", "--timeout=40s")
        # The condition of its pods follows a moment later.
        kubectl("wait", "pod/web", "--for=condition=Ready=False", "--timeout=20s")
        assert reached(f"http://{address}:8080") == "web", "it runs on all the same"
    finally:
        cluster.start_kubelet("node2")
    wait_for_pod(kubectl, "web")
    assert field(kubectl, "pod/web", ".status.containerStatuses[0].restartCount") == "0"


def test_killed_pod_gets_no_signal_and_starts_again(cluster: NodeCluster, kubectl: Kubectl) -> None:
    namespace = field(kubectl, "serviceaccount/default", ".metadata.namespace")
    # The pod records SIGTERM in a volume, as the kubelet may lose a container's last state.
    hears = "trap 'touch /told/to-end; exit 3' TERM; while :; do sleep 0.1; done"
    deaf = pod("deaf", hears, volumeMounts=[{"name": "told", "mountPath": "/told"}])
    deaf["spec"]["volumes"] = [{"name": "told", "emptyDir": {}}]
    kubectl("apply", "-f", "-", input=deaf)
    kubectl("apply", "-f", "-", input=pod("other", "sleep 1000"))
    for name in ("deaf", "other"):
        wait_for_pod(kubectl, name)
    cluster.kill_pod(namespace, "deaf")
    restarts = ".status.containerStatuses[0].restartCount"
    wait_until(lambda: field(kubectl, "pod/deaf", restarts) == "1", "it starts again", WAIT_S)
    wait_for_pod(kubectl, "deaf")
    assert kubectl("exec", "deaf", "--", "ls", "/told") == ""
    assert field(kubectl, "pod/other", restarts) == "0"


def test_nodes_and_services_are_found(cluster: NodeCluster, kubectl: Kubectl) -> None:
    namespace = field(kubectl, "serviceaccount/default", ".metadata.namespace")
    assert cluster.nodes == list(NODES)
    kubectl("apply", "-f", "-", input=server("web"))
    kubectl("apply", "-f", "-", input=service("web", "web"))
    wait_for_pod(kubectl, "web")
    address = cluster.service_address(namespace, "web")
    assert reached(f"http://{address}") == "web"


def test_pods_run_on_without_the_api_server(cluster: NodeCluster, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=server("web"))
    kubectl("apply", "-f", "-", input=service("web", "web"))
    wait_for_pod(kubectl, "web")
    address = field(kubectl, "service/web", ".spec.clusterIP")
    assert reached(f"http://{address}") == "web", "the nodes know it"
    cluster.stop_apiserver()
    try:
        with pytest.raises(KubectlError, match="refused"):
            kubectl("get", "pods")
        assert reached(f"http://{address}") == "web"
    finally:
        cluster.start_apiserver()
    kubectl("delete", "pod", "web", "--timeout=30s")


def test_webhooks_are_called_through_their_service(
    cluster: NodeCluster, kubectl: Kubectl, tmp_path: Path
) -> None:
    """The API server calls webhooks of core resources, the CRD server those of custom ones. Their
    error about HTTP instead of HTTPS shows that the webhook was reached."""
    namespace = field(kubectl, "serviceaccount/default", ".metadata.namespace")
    kubectl("apply", "-f", "-", input=server("web"))
    secure = service("web", "web", ports=[{"port": 443, "targetPort": 8080}])
    kubectl("apply", "-f", "-", input=secure)
    wait_for_pod(kubectl, "web")
    cluster.kubectl("apply", "--validate=false", "-f", str(THINGS))
    reference = {"namespace": namespace, "name": "web", "path": "/"}
    authority = base64.b64encode(Authority(tmp_path, "any").certificate.read_bytes()).decode()
    hook = {
        "name": "web.example.io",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"service": reference, "caBundle": authority},
        "namespaceSelector": {"matchLabels": {"guarded": "yes"}},
        "rules": [
            {
                "apiGroups": ["", "example.io"],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["configmaps", "things"],
            }
        ],
    }
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "web"},
        "webhooks": [hook],
    }
    cluster.kubectl("label", "namespace", namespace, "guarded=yes")
    cluster.kubectl("apply", "-f", "-", input=json.dumps(configuration))
    thing = {"apiVersion": "example.io/v1", "kind": "Thing", "metadata": {"name": "a"}}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}

    def is_asked(document: dict[str, Any]) -> bool:
        try:
            kubectl("create", "--dry-run=server", "-f", "-", input=document)
        except KubectlError as error:
            return "server gave HTTP response to HTTPS client" in error.stderr
        return False

    try:
        for document in (thing, config_map):
            wait_until(lambda found=document: is_asked(found), f"{document['kind']}", 20, every_s=1)
    finally:
        cluster.kubectl("delete", "validatingwebhookconfiguration", "web")
        cluster.kubectl("delete", "crd", "things.example.io")


def test_requests_are_recorded_with_their_user(cluster: NodeCluster, kubectl: Kubectl) -> None:
    namespace = field(kubectl, "serviceaccount/default", ".metadata.namespace")
    user = f"system:serviceaccount:{namespace}:default"
    with pytest.raises(KubectlError, match="cannot list"):
        kubectl(f"--as={user}", "get", "secrets")
    events = map(json.loads, cluster.audit_log.read_text().splitlines())
    assert ("list", "secrets", 403) in {
        (event["verb"], event["objectRef"]["resource"], event["responseStatus"]["code"])
        for event in events
        if event.get("impersonatedUser", {}).get("username") == user and "objectRef" in event
    }


def test_image_can_be_replaced(cluster: NodeCluster, kubectl: Kubectl, tmp_path: Path) -> None:
    busybox = cluster.binaries / "busybox"
    for text in ("old", "new"):
        layers = [tmp_path / "low.tar", tmp_path / "high.tar"]
        write_layer(layers[0], {"/bin/busybox": busybox})
        write_layer(layers[1], {"/text": text.encode()})
        archive = tmp_path / "image.tar"
        config = ImageConfig(
            ["/bin/busybox", "sh", "-c", "/bin/busybox id -u; /bin/busybox cat text $MORE"],
            environment={"MORE": "/text"},
            user="1234",
            working_dir="/",
        )
        write_image(archive, "registry.local/text:1", layers, config)
        cluster.import_image(archive)
        document = pod(text, "")
        document["spec"]["restartPolicy"] = "Never"
        document["spec"]["containers"] = [{"name": "main", "image": "registry.local/text:1"}]
        kubectl("apply", "-f", "-", input=document)
        wait_until(
            lambda name=text: field(kubectl, f"pod/{name}", ".status.phase") == "Succeeded",
            "it has run",
            WAIT_S,
        )
        assert kubectl("logs", text) == f"1234\n{text}{text}"


def test_second_node_cluster_is_refused(cluster: NodeCluster) -> None:
    with pytest.raises(ClusterError, match="is up already"), NodeCluster():
        pass
    assert "node1" in cluster.kubectl("get", "nodes")
