"""An existing cluster."""

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from cluster import binaries
from cluster.base import Cluster
from cluster.capabilities import Capability
from cluster.errors import ClusterError
from cluster.port_forward import PortForward
from cluster.processes import wait_until

_SERVICE_S = 30.0


class GivenCluster(Cluster):
    """The cluster of the context of `KUBECONFIG` that was current when the test run began.

    Services are reached by port-forward to one of their pods.
    """

    capabilities = frozenset({Capability.RUN_PODS})

    def __enter__(self) -> "GivenCluster":
        # An installed kubectl probably matches the cluster's version better than the built one.
        installed = shutil.which("kubectl")
        kubectl = Path(installed) if installed else binaries.find() / "kubectl"
        with ExitStack() as stack:
            self._folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="macroserve-given-"))
            )
            self.kubeconfig = self._folder / "kubeconfig"
            self.kubeconfig.touch(mode=0o600)
            self.kubeconfig.write_text(self._credentials(kubectl))
            # The user's cache may contain an earlier cluster with the same address.
            self.kubectl_command = [
                kubectl,
                f"--kubeconfig={self.kubeconfig}",
                f"--cache-dir={self._folder / 'kubectl-cache'}",
            ]
            self._forwards: dict[tuple[str, str, int], PortForward] = {}
            stack.callback(self._stop_forwards)
            self._leave = stack.pop_all().close
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _credentials(self, kubectl: Path) -> str:
        """Return the text of an administrator's kubeconfig."""
        if not os.environ.get("KUBECONFIG"):
            raise ClusterError("KUBECONFIG names no cluster")
        return _current_context(kubectl)

    def service_address(self, namespace: str, service: str) -> str:
        backends: list[tuple[str, int]] = []

        def has_pods() -> bool:
            backends[:] = self._backends(namespace, service)
            return bool(backends)

        wait_until(has_pods, f"{service} has ready pods", _SERVICE_S)
        for pod, port in backends:
            forward = self._forwards.get((namespace, pod, port))
            if forward is not None and forward.is_running:
                return forward.address
        pod, port = backends[0]
        log = self._folder / f"port-forward-{pod}.log"
        forward = PortForward(self.kubectl_command, namespace, pod, port, log)
        self._forwards[namespace, pod, port] = forward
        return forward.address

    def _backends(self, namespace: str, service: str) -> list[tuple[str, int]]:
        """Return the ready pods behind the service's first port, each with its port there."""
        found = self.kubectl("-n", namespace, "get", "endpoints", service, "-o", "json")
        return [
            (address["targetRef"]["name"], subset["ports"][0]["port"])
            for subset in json.loads(found).get("subsets") or []
            for address in subset.get("addresses") or []
        ]

    def _stop_forwards(self) -> None:
        for forward in self._forwards.values():
            forward.stop()


def _current_context(kubectl: Path) -> str:
    """Return the current context of KUBECONFIG as the text of one file."""
    command = [kubectl, "config", "view", "--raw", "--flatten", "--minify"]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise ClusterError(f"KUBECONFIG names no cluster: {ended.stderr.strip()}")
    return ended.stdout
