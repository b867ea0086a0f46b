"""A cluster of kind (Kubernetes in Docker), created for a test run."""

import json
import os
import shutil
import tempfile
from pathlib import Path

from cluster.capabilities import Capability
from cluster.errors import ClusterError
from cluster.given_cluster import GivenCluster
from cluster.processes import run, wait_until

NAME = "macroserve-e2e"
_CONFIG = """
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes: [{role: control-plane}, {role: worker}, {role: worker}]
"""
_READY_S = 60.0


class KindCluster(GivenCluster):
    """A control plane and two workers, deleted after the test run.

    `KIND_IMAGE` is the image of the nodes, which determines the version of Kubernetes; the default
    is that of the installed kind. Services are reached by port-forward.
    """

    capabilities = GivenCluster.capabilities | {
        Capability.IMPORT_IMAGES,
        Capability.KILL_PODS,
        Capability.STOP_KUBELETS,
    }

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        _kind("delete", "cluster")

    def _credentials(self, kubectl: Path) -> str:
        if shutil.which("kind") is None:
            raise ClusterError("there is no kind in PATH: see https://kind.sigs.k8s.io")
        image = os.environ.get("KIND_IMAGE")
        with tempfile.TemporaryDirectory(prefix="macroserve-kind-") as scratch:
            config, kubeconfig = Path(scratch) / "kind.yaml", Path(scratch) / "kubeconfig"
            config.write_text(_CONFIG)
            _kind(
                *("create", "cluster", f"--config={config}", f"--kubeconfig={kubeconfig}"),
                *("--wait=120s", *([f"--image={image}"] if image else [])),
            )
            return kubeconfig.read_text()

    @property
    def nodes(self) -> list[str]:
        """Names of the workers."""
        return [node for node in super().nodes if not node.endswith("-control-plane")]

    def import_image(self, archive: Path) -> None:
        _kind("load", "image-archive", str(archive))

    def kill_pod(self, namespace: str, pod: str) -> None:
        found = json.loads(self.kubectl("-n", namespace, "get", "pod", pod, "-o", "json"))
        node = found["spec"]["nodeName"]
        for container in found["status"]["containerStatuses"]:
            identifier = container["containerID"].rpartition("/")[2]
            process = json.loads(_on(node, "crictl", "inspect", identifier))["info"]["pid"]
            _on(node, "kill", "-KILL", str(process))

    def kill_kubelet(self, node: str) -> None:
        # systemd would restart a killed kubelet.
        _on(node, "systemctl", "stop", "kubelet")

    def start_kubelet(self, node: str) -> None:
        _on(node, "systemctl", "start", "kubelet")
        wait_until(lambda: self._is_ready(node), f"{node} is Ready", _READY_S)

    def _is_ready(self, node: str) -> bool:
        conditions = json.loads(self.kubectl("get", "node", node, "-o", "json"))["status"]
        return any(
            (condition["type"], condition["status"]) == ("Ready", "True")
            for condition in conditions["conditions"]
        )


def _kind(*arguments: str) -> None:
    run("kind", *arguments, f"--name={NAME}")


def _on(node: str, *command: str) -> str:
    """Run a command on a node, which is a container of that name; return its output."""
    return run("docker", "exec", node, *command)
