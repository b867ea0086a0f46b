"""What tests may ask of any cluster; what only some can do skips the test elsewhere."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.errors import KubectlError, UnsupportedError
from cluster.processes import wait_until

_CRD_S = 30.0


class Cluster:
    kubeconfig: Path
    """Lets in an administrator."""
    kubectl_command: Sequence[str | Path]
    """kubectl itself, with options that lead it to this cluster."""

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """What it printed. Raises KubectlError (a CalledProcessError) if it refused."""
        ended = subprocess.run(
            [*self.kubectl_command, *arguments],
            input=input,
            capture_output=True,
            text=True,
        )
        if ended.returncode:
            raise KubectlError(
                ended.returncode, ["kubectl", *arguments], ended.stdout, ended.stderr
            )
        return ended.stdout

    def apply_crd(self, path: Path) -> None:
        """Returns when the resources of all CRDs in the file are served, and kubectl knows them."""
        self.kubectl("apply", "-f", str(path))
        applied = json.loads(self.kubectl("get", "-f", str(path), "-o", "json"))
        for crd in applied.get("items", [applied]):
            for version in crd["spec"]["versions"]:
                name = f"{version['name']}.{crd['spec']['group']}"
                if version["served"]:
                    wait_until(
                        lambda name=name: self._is_available(name), f"{name} is served", _CRD_S
                    )
            name = crd["metadata"]["name"]
            wait_until(lambda name=name: self._is_known(name), f"{name} is known", _CRD_S)

    def _is_available(self, api: str) -> bool:
        """Once it is, all clients get to it in the same way."""
        try:
            found = json.loads(self.kubectl("get", "apiservice", api, "-o", "json"))
        except KubectlError:
            return False
        conditions = found.get("status", {}).get("conditions") or []
        is_available = any(
            condition["type"] == "Available" and condition["status"] == "True"
            for condition in conditions
        )
        return is_available and self._is_registered(found)

    def _is_known(self, resource: str) -> bool:
        """This renews what kubectl remembers of the cluster's resources."""
        group = resource.partition(".")[2]
        known = self.kubectl("api-resources", f"--api-group={group}", "-o", "name")
        return resource in known.split()

    def _is_registered(self, api_service: dict[str, Any]) -> bool:
        """Whether the API is led to whatever serves CRDs in this cluster."""
        return True

    @property
    def audit_log(self) -> Path:
        """Every request that the API server has answered, as JSON lines (level Metadata)."""
        raise UnsupportedError("this cluster's audit log is out of reach")

    def import_image(self, archive: Path) -> None:
        """Give all nodes the image of an archive that `image_archive` wrote."""
        raise UnsupportedError("images cannot be put on this cluster's nodes")

    def fake_gpus(self, node: str, count: int) -> None:
        """Let a node offer so many `nvidia.com/gpu` to the scheduler from now on."""
        raise UnsupportedError("this cluster's nodes have the GPUs that they have")

    def kill_kubelet(self, node: str) -> None:
        """As in a crash: the node's pods run on, and Kubernetes knows nothing of them."""
        raise UnsupportedError("this cluster's kubelets cannot be killed")

    def start_kubelet(self, node: str) -> None:
        """Undo `kill_kubelet`; returns when the node is Ready."""
        raise UnsupportedError("this cluster's kubelets cannot be started")

    def stop_apiserver(self) -> None:
        """As in a crash: all connections break."""
        raise UnsupportedError("this cluster's API server cannot be stopped")

    def start_apiserver(self) -> None:
        """Undo `stop_apiserver`; returns when it is ready."""
        raise UnsupportedError("this cluster's API server cannot be started")
