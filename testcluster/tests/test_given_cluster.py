"""An existing cluster is that of KUBECONFIG, and its services are reached by port-forward."""

import json
import os
import stat
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from cluster import Capability, ClusterError, GivenCluster, UnsupportedError

KUBECTL = """#!{python}
import json, pathlib, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

folder = pathlib.Path("{folder}")
arguments = [a for a in sys.argv[1:] if not a.startswith(("--kubeconfig", "--cache-dir"))]

class Pod(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(arguments[3].encode())

if arguments[:2] == ["config", "view"]:
    assert arguments[2:] == ["--raw", "--flatten", "--minify"]
    print("the current context")
elif "endpoints" in arguments:
    print((folder / "endpoints.json").read_text())
elif arguments[0] == "port-forward":
    assert arguments[1:3] == ["--namespace=team", "--address=127.0.0.1"]
    if arguments[3] == "pod/gone":
        sys.exit("error: pods gone not found")
    local, _, remote = arguments[4].partition(":")
    assert remote == "8000"
    HTTPServer(("127.0.0.1", int(local)), Pod).serve_forever()
elif arguments[:2] == ["get", "nodes"]:
    print(json.dumps({{"items": [{{"metadata": {{"name": name}}}} for name in "ab"]}}))
"""


class Kubectl:
    """A fake kubectl command."""

    def __init__(self, folder: Path) -> None:
        self._endpoints = folder / "endpoints.json"
        self.command = folder / "kubectl"
        self.command.write_text(KUBECTL.format(python=sys.executable, folder=folder))
        self.command.chmod(0o755)
        self.serve_by()

    def serve_by(self, *pods: str) -> None:
        """Set the ready pods of the service."""
        addresses = [{"ip": "10.0.0.1", "targetRef": {"name": pod}} for pod in pods]
        subset: dict[str, Any] = {"addresses": addresses, "ports": [{"port": 8000}]}
        self._endpoints.write_text(json.dumps({"subsets": [subset] if pods else None}))


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    kubectl = Kubectl(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", "any")
    return kubectl


def ask(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}", timeout=5) as answer:
        return answer.read().decode()


def test_given_cluster_without_kubeconfig_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(ClusterError, match="KUBECONFIG names no cluster"), GivenCluster():
        pass


def test_kubeconfig_is_a_private_copy_of_the_current_context(kubectl: Kubectl) -> None:
    with GivenCluster() as cluster:
        assert cluster.kubeconfig.read_text().strip() == "the current context"
        assert stat.S_IMODE(cluster.kubeconfig.stat().st_mode) == 0o600
        assert cluster.nodes == ["a", "b"]
    assert not cluster.kubeconfig.exists()


def test_service_is_reached_by_one_of_its_pods_as_long_as_that_is_ready(kubectl: Kubectl) -> None:
    with GivenCluster() as cluster:
        kubectl.serve_by("one", "two")
        first = cluster.service_address("team", "llama")
        assert ask(first) == "pod/one"
        kubectl.serve_by("two", "one")
        assert cluster.service_address("team", "llama") == first
        kubectl.serve_by("two")
        second = cluster.service_address("team", "llama")
        assert ask(second) == "pod/two"
    for address in (first, second):
        with pytest.raises(OSError, match="refused"):
            ask(address)


def test_pod_that_cannot_be_reached_raises_the_words_of_kubectl(kubectl: Kubectl) -> None:
    kubectl.serve_by("gone")
    with GivenCluster() as cluster, pytest.raises(ClusterError, match="pods gone not found"):
        cluster.service_address("team", "llama")


def test_given_cluster_names_the_capability_that_it_lacks(kubectl: Kubectl) -> None:
    assert GivenCluster.capabilities == {Capability.RUN_PODS}
    message = "this cluster cannot stop the kubelet of a node"
    with GivenCluster() as cluster, pytest.raises(UnsupportedError, match=message):
        cluster.kill_kubelet(cluster.nodes[0])
