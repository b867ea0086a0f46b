"""The API of external metrics, as served by an adapter of a monitoring system."""

import json
import ssl
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml
from cluster import ApiCluster
from cluster.pki import Authority

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
ROLE = "external-metrics-reader"


class ExternalMetrics:
    """An API of external metrics with `values`, the same in all namespaces. It is registered in the
    cluster when the context is entered, and stops answering when it is left."""

    def __init__(self, cluster: ApiCluster, folder: Path) -> None:
        self.values: dict[str, int] = {}
        self._cluster = cluster
        authority = Authority(folder, "adapter-ca")
        pair = authority.server("adapter", ["DNS:localhost"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def __enter__(self) -> "ExternalMetrics":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        name = {"name": "metrics-adapter", "namespace": "kube-system"}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": name,
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }
        api_service = {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{VERSION}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "version": VERSION,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": name | {"port": self._server.server_port},
            },
        }
        kubectl = self._cluster.kubectl
        kubectl("apply", "-f", "-", input=yaml.safe_dump_all([service, api_service]))
        # The adapter also needs permissions for its clients.
        kubectl("create", "clusterrole", ROLE, "--verb=list", f"--resource=*.{GROUP}")
        autoscaler = "--serviceaccount=kube-system:horizontal-pod-autoscaler"
        kubectl("create", "clusterrolebinding", ROLE, f"--clusterrole={ROLE}", autoscaler)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        values = self.values

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0].strip("/").split("/")
                # apis/<group>/<version>[/namespaces/<namespace>/<metric>]
                answer = _values(path[5], values) if len(path) == 6 else _resources()
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Keep the server's log out of the tests' output."""

        return Handler


def _resources() -> dict[str, object]:
    return {"kind": "APIResourceList", "groupVersion": f"{GROUP}/{VERSION}", "resources": []}


def _values(metric: str, values: dict[str, int]) -> dict[str, object]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    item = {"metricName": metric, "metricLabels": {}, "timestamp": now}
    return {
        "kind": "ExternalMetricValueList",
        "apiVersion": f"{GROUP}/{VERSION}",
        "metadata": {},
        "items": [item | {"value": str(values[metric])}] if metric in values else [],
    }
