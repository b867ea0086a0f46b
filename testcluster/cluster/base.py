"""The operations of clusters for tests; a test that uses a missing one is skipped."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.capabilities import Capability
from cluster.errors import KubectlError, UnsupportedError
from cluster.processes import wait_until

_CRD_S = 30.0


class Cluster:
    capabilities: frozenset[Capability] = frozenset()
    """Capabilities of this kind of cluster in addition to kubectl."""
    kubeconfig: Path
    """An administrator's kubeconfig."""
    kubectl_command: Sequence[str | Path]
    """kubectl with the options for this cluster."""

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """Run kubectl and return its output. Raises KubectlError (a CalledProcessError) if it
        fails."""
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

    @property
    def nodes(self) -> list[str]:
        """Return the names of all nodes."""
        nodes = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        return [node["metadata"]["name"] for node in nodes]

    def apply_crd(self, path: Path) -> None:
        """Apply CRDs; return when their resources are served and kubectl finds them."""
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
        """Return whether the API is available to all clients."""
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
        """Return whether kubectl finds the resource, after refreshing its cache."""
        group = resource.partition(".")[2]
        known = self.kubectl("api-resources", f"--api-group={group}", "-o", "name")
        return resource in known.split()

    def _is_registered(self, api_service: dict[str, Any]) -> bool:
        """Return whether the API is registered for the server of CRDs."""
        return True

    def service_address(self, namespace: str, service: str) -> str:
        """Return the address of a Service's first port for this machine, like ``10.96.0.7:80``."""
        raise UnsupportedError(Capability.RUN_PODS)

    @property
    def audit_log(self) -> Path:
        """Return the API server's audit log in JSON lines (level Metadata)."""
        raise UnsupportedError(Capability.AUDIT_LOG)

    def import_image(self, archive: Path) -> None:
        """Import an archive of `image_archive` on all nodes."""
        raise UnsupportedError(Capability.IMPORT_IMAGES)

    def fake_gpus(self, node: str, count: int) -> None:
        """Let a node report `count` devices `nvidia.com/gpu`."""
        raise UnsupportedError(Capability.FAKE_GPUS)

    def kill_pod(self, namespace: str, pod: str) -> None:
        """Kill the processes of a pod's containers without SIGTERM, as in a crash."""
        raise UnsupportedError(Capability.KILL_PODS)

    def kill_kubelet(self, node: str) -> None:
        """Kill a node's kubelet, as in a crash; the node's pods keep running."""
        raise UnsupportedError(Capability.STOP_KUBELETS)

    def start_kubelet(self, node: str) -> None:
        """Undo `kill_kubelet`; return when the node is Ready."""
        raise UnsupportedError(Capability.STOP_KUBELETS)

    def stop_apiserver(self) -> None:
        """Kill the API server, as in a crash: all connections break."""
        raise UnsupportedError(Capability.STOP_API_SERVER)

    def start_apiserver(self) -> None:
        """Undo `stop_apiserver`; return when it is ready."""
        raise UnsupportedError(Capability.STOP_API_SERVER)
