"""A node: containerd, kubelet and kube-proxy on a separate machine."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from cluster import cgroups, network
from cluster.credentials import Credentials
from cluster.errors import ClusterError
from cluster.image_archive import read_image
from cluster.machine import Machine
from cluster.network import NodeNetwork
from cluster.processes import Process, wait_until

_FILES = Path(__file__).parent / "files"
_START_S = 30.0
_SETTINGS = "/run/cluster"
_BINARIES = f"{_SETTINGS}/bin"
_REPLACED = "registry.local/replaced:now"
_SYSCTLS = {
    "kernel/keys/root_maxbytes": 25_000_000,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
}
"""Settings that the kubelet would change for the whole machine; it finds them in place."""


@dataclass(frozen=True)
class Disk:
    """A node's folders, by their paths on this machine."""

    state: Path
    """Folder of the node, removed with the cluster."""
    image_store: Path
    """containerd's root, in which images stay unpacked for later clusters."""
    binaries: Path
    logs: Path


class Node:
    def __init__(self, name: str, at: NodeNetwork, disk: Disk) -> None:
        self.name = name
        self.at = at
        self._disk = disk
        self._machine = Machine(name, disk.state, disk.logs)
        self._processes: dict[str, Process] = {}

    def boot(self, neighbours: list[NodeNetwork], credentials: Credentials) -> None:
        """Start containerd and connect the node to its neighbours."""
        machine = self._machine
        self._write_settings(credentials)
        machine.start(self._disk.binaries / "pause")
        machine.bind(self._disk.binaries, str(machine.folder(_BINARIES)))
        self._disk.image_store.mkdir(parents=True, exist_ok=True)
        machine.bind(self._disk.image_store, str(machine.folder("/var/lib/containerd")))
        self._hide_sysctls()
        machine.bind_own_folders()
        network.attach(self.at, neighbours, machine.pid)
        machine.call("sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1")
        cgroups.create(self.name)
        self._remove_old_containers()
        self._start_containerd("containerd.toml")

    def start_kubelet(self) -> None:
        self._run(
            "kubelet",
            f"--config={_SETTINGS}/kubelet.yaml",
            f"--kubeconfig={_SETTINGS}/kubelet.kubeconfig",
            f"--hostname-override={self.name}",
            f"--node-ip={self.at.address}",
            f"--cgroup-root={cgroups.path(self.name)}",
            f"--cluster-dns={network.MACHINE}",
            "--container-runtime=remote",
            "--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
        )

    def kill_kubelet(self) -> None:
        self._processes.pop("kubelet").kill()

    def start_proxy(self) -> None:
        self._run(
            "kube-proxy",
            f"--kubeconfig={_SETTINGS}/kube-proxy.kubeconfig",
            f"--hostname-override={self.name}",
            f"--cluster-cidr={network.PODS}",
            "--proxy-mode=iptables",
            # These settings would apply to the whole machine.
            "--conntrack-max-per-core=0",
            "--oom-score-adj=0",
        )

    def import_image(self, archive: Path) -> None:
        """Import the archive's image unless the node has it."""
        image = read_image(archive)
        lines = (line.split() for line in self._ctr("images", "check").splitlines())
        present = {fields[0]: (fields[2], fields[-1]) for fields in lines}
        if present.get(image.name) == (image.digest, "true"):
            return
        # Else containerd may collect the image that is replaced, and the layers that both have,
        # while it unpacks the new one.
        if image.name in present:
            self._ctr("images", "tag", "--force", image.name, _REPLACED)
        with archive.open("rb") as file:
            self._machine.call(*_CTR, "images", "import", "-", stdin=file)
        if image.name in present:
            self._ctr("images", "remove", _REPLACED)

    @property
    def processes(self) -> list[Process]:
        return list(self._processes.values())

    def stop(self) -> None:
        self._machine.stop()
        self._processes.clear()

    def _write_settings(self, credentials: Credentials) -> None:
        settings = self._machine.folder(_SETTINGS)
        for name in ("containerd.toml", "containerd-only.toml", "kubelet.yaml"):
            shutil.copy(_FILES / name, settings)
        (settings / "resolv.conf").write_text(f"nameserver {network.MACHINE}\n")
        (self._machine.folder(f"{_SETTINGS}/cni") / "pods.conflist").write_text(
            json.dumps(_pod_network(self.at.pods))
        )
        server = credentials.authority.server(
            f"{self.name}-kubelet", [f"DNS:{self.name}", f"IP:{self.at.address}"]
        )
        for source, target in (
            (credentials.authority.certificate, "ca.crt"),
            (server.certificate, "kubelet.crt"),
            (server.key, "kubelet.key"),
            (credentials.node_kubeconfig(self.name), "kubelet.kubeconfig"),
            (credentials.component_kubeconfig("kube-proxy"), "kube-proxy.kubeconfig"),
        ):
            shutil.copy(source, settings / target)

    def _hide_sysctls(self) -> None:
        for name, value in _SYSCTLS.items():
            file = self._disk.state / "sysctl" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
            self._machine.bind(file, f"/proc/sys/{name}")

    def _remove_old_containers(self) -> None:
        """Remove containers of an earlier cluster, which containerd stores with the images."""
        self._start_containerd("containerd-only.toml")
        if old := self._ctr("containers", "list", "--quiet").split():
            self._ctr("containers", "delete", *old)
        self._processes.pop("containerd").kill()

    def _start_containerd(self, settings: str) -> None:
        self._run("containerd", f"--config={_SETTINGS}/{settings}")
        wait_until(
            self._is_containerd_up,
            f"{self.name}'s containerd answers",
            _START_S,
            [self._processes["containerd"]],
        )

    def _is_containerd_up(self) -> bool:
        try:
            self._ctr("version")
        except ClusterError:
            return False
        return True

    def _ctr(self, *arguments: str) -> str:
        return self._machine.call(*_CTR, *arguments)

    def _run(self, name: str, *flags: str) -> None:
        self._processes[name] = self._machine.run(name, [f"{_BINARIES}/{name}", *flags])


_CTR = (f"{_BINARIES}/ctr", "--namespace=k8s.io")


def _pod_network(addresses: str) -> dict[str, object]:
    """Return a CNI configuration of a bridge with routes to all pods, without NAT."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": addresses}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge | {"ipam": ipam}]}
