"""A cluster of kind is created for a test run and deleted after it, with fake kind and Docker."""

import os
import sys
from pathlib import Path

import pytest
from cluster import Capability, ClusterError, KindCluster
from cluster.kind_cluster import NAME

COMMAND = """#!{python}
import json, pathlib, sys

folder, name, arguments = pathlib.Path("{folder}"), pathlib.Path(sys.argv[0]).name, sys.argv[1:]
options = dict(a[2:].split("=", 1) for a in arguments if a.startswith("--") and "=" in a)
with (folder / "calls").open("a") as calls:
    calls.write(" ".join([name, *arguments]) + "\\n")
if name == "kind" and arguments[0] == "create":
    pathlib.Path(options["kubeconfig"]).write_text("of an administrator")
    (folder / "config").write_text(pathlib.Path(options["config"]).read_text())
elif name == "docker" and arguments[2:4] == ["crictl", "inspect"]:
    print(json.dumps({{"info": {{"pid": 4711}}}}))
elif name == "kubectl":
    pod = {{"spec": {{"nodeName": "a-worker"}},
           "status": {{"containerStatuses": [{{"containerID": "containerd://c0ffee"}}]}}}}
    ready = {{"status": {{"conditions": [{{"type": "Ready", "status": "True"}}]}}}}
    names = ("a-control-plane", "a-worker", "a-worker2")
    nodes = {{"items": [{{"metadata": {{"name": name}}}} for name in names]}}
    print(json.dumps(pod if "pod" in arguments else ready if "node" in arguments else nodes))
"""


class Played:
    """Fake commands that are recorded and answered like a cluster with two workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("kind", "docker", "kubectl"):
            command = folder / name
            command.write_text(COMMAND.format(python=sys.executable, folder=folder))
            command.chmod(0o755)

    def calls(self, command: str) -> list[str]:
        lines = (self._folder / "calls").read_text().splitlines()
        return [line for line in lines if line.startswith(f"{command} ")]

    @property
    def config(self) -> str:
        return (self._folder / "config").read_text()


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("KIND_IMAGE", raising=False)
    return Played(tmp_path)


def test_cluster_without_kind_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="there is no kind in PATH"), KindCluster():
        pass


def test_cluster_is_created_with_two_workers_and_deleted(played: Played) -> None:
    with KindCluster() as cluster:
        assert cluster.kubeconfig.read_text() == "of an administrator"
        assert cluster.nodes == ["a-worker", "a-worker2"]
        assert played.config.count("role: worker") == 2
        (created,) = played.calls("kind")
        assert created.startswith("kind create cluster") and created.endswith(f"--name={NAME}")
        assert "--image" not in created
    assert played.calls("kind")[1:] == [f"kind delete cluster --name={NAME}"]


def test_version_of_kubernetes_is_that_of_the_image(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KIND_IMAGE", "kindest/node:v1.20.15")
    with KindCluster():
        assert "--image=kindest/node:v1.20.15" in played.calls("kind")[0]


def test_archive_of_an_image_is_loaded_into_the_nodes(played: Played) -> None:
    with KindCluster() as cluster:
        cluster.import_image(Path("engine.tar"))
    assert f"kind load image-archive engine.tar --name={NAME}" in played.calls("kind")


def test_pod_and_kubelet_are_ended_in_the_container_of_their_node(played: Played) -> None:
    with KindCluster() as cluster:
        cluster.kill_pod("team", "llama-instance-0")
        cluster.kill_kubelet("a-worker")
        cluster.start_kubelet("a-worker")
    assert played.calls("docker") == [
        "docker exec a-worker crictl inspect c0ffee",
        "docker exec a-worker kill -KILL 4711",
        "docker exec a-worker systemctl stop kubelet",
        "docker exec a-worker systemctl start kubelet",
    ]


def test_kind_cluster_has_the_capabilities_of_its_methods() -> None:
    assert KindCluster.capabilities == {
        *(Capability.RUN_PODS, Capability.IMPORT_IMAGES),
        *(Capability.KILL_PODS, Capability.STOP_KUBELETS),
    }
