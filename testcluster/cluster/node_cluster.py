"""A cluster of two real nodes on one machine, which runs containers. It needs root."""

import fcntl
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from cluster import binaries, cgroups, dns, images, network, packages, places
from cluster.built_cluster import BuiltCluster
from cluster.capabilities import Capability
from cluster.control_plane import ControlPlane, Settings
from cluster.errors import ClusterError
from cluster.network import NodeNetwork
from cluster.node import Disk, Node
from cluster.steps import Steps

NODES = {"node1": NodeNetwork(1), "node2": NodeNetwork(2)}
_PORT = 6443
_GPU = "nvidia.com/gpu"
_CONTROLLER_FLAGS = (
    # Shorter than the default, because tests wait for a node to become NotReady.
    "--node-monitor-period=2s",
    "--node-monitor-grace-period=16s",
    "--horizontal-pod-autoscaler-sync-period=5s",
)


class NodeCluster(BuiltCluster):
    """Nodes `node1` and `node2`, with pods, Services and DNS.

    The machine reaches pods and Services by their addresses, and pods only reach the machine, at
    `network.MACHINE`. Only one cluster can run. Its processes end with the thread that starts it.
    """

    capabilities = frozenset(Capability)

    def __init__(self, steps: Steps | None = None) -> None:
        self._steps = steps or Steps(quiet=True)
        self._nodes: dict[str, Node] = {}
        self._gpus: dict[str, int] = {}

    def __enter__(self) -> "NodeCluster":
        if os.geteuid() != 0:
            raise ClusterError("a cluster of nodes needs root")
        packages.require(packages.NODES_TIER)
        with ExitStack() as stack:
            stack.enter_context(_only_one())
            _remove_remains()
            stack.callback(_remove_remains)
            self._start_control_plane(stack)
            self._start_nodes(stack)
            self._leave = stack.pop_all().close
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def service_address(self, namespace: str, service: str) -> str:
        found = self._control_plane.api.get(f"/api/v1/namespaces/{namespace}/services/{service}")
        return f"{found['spec']['clusterIP']}:{found['spec']['ports'][0]['port']}"

    def import_image(self, archive: Path) -> None:
        for node in self._nodes.values():
            node.import_image(archive)

    def kill_pod(self, namespace: str, pod: str) -> None:
        found = self._control_plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")
        for pid in cgroups.processes(f"pod{found['metadata']['uid']}"):
            # The other processes end with a container's first one.
            with suppress(FileNotFoundError, ProcessLookupError):
                # The pod's sandbox keeps its network, and is not one of its containers.
                if Path(f"/proc/{pid}/comm").read_text() != "pause\n":
                    os.kill(pid, signal.SIGKILL)

    def kill_kubelet(self, node: str) -> None:
        self._nodes[node].kill_kubelet()

    def start_kubelet(self, node: str) -> None:
        before = self._heartbeat(node)
        self._nodes[node].start_kubelet()
        self._wait_until(lambda: self._heartbeat(node) > before, f"{node} reports")
        # A starting kubelet sets unknown resources to zero.
        if node in self._gpus:
            self.fake_gpus(node, self._gpus[node])
        self._wait_until(lambda: self._is_ready(node), f"{node} is Ready")

    def fake_gpus(self, node: str, count: int) -> None:
        self._gpus[node] = count
        resources = {_GPU: str(count)}
        change = {"status": {"capacity": resources, "allocatable": resources}}
        self._control_plane.api.patch(f"/api/v1/nodes/{node}/status", change)

    def _start_control_plane(self, stack: ExitStack) -> None:
        run = places.nodes_run()
        run.mkdir(parents=True)
        network.create_bridge()
        resolver = run / "resolv.conf"
        resolver.write_text(f"nameserver {network.MACHINE}\nsearch {dns.DOMAIN}\n")
        with self._steps("certificates"):
            control_plane = ControlPlane(
                Settings(
                    run,
                    binaries.find(),
                    network.MACHINE,
                    _PORT,
                    api_server_flags=[f"--advertise-address={network.MACHINE}"],
                    crd_server_prefix=_resolving_by(resolver),
                )
            )
        stack.callback(control_plane.stop)
        self._use(control_plane)
        control_plane.start(self._steps)
        control_plane.start_controllers(*_CONTROLLER_FLAGS)
        control_plane.start_scheduler()
        hosts = run / "hosts"
        hosts.mkdir()
        control_plane.run("dnsmasq", ["dnsmasq", *dns.dnsmasq_flags(network.MACHINE, hosts)])
        control_plane.run_module("dns", str(hosts))

    def _start_nodes(self, stack: ExitStack) -> None:
        control_plane = self._control_plane
        archives = images.build(self.binaries, places.images())
        for name, at in NODES.items():
            disk = Disk(
                places.nodes_run() / name, places.image_store(name), self.binaries, self.logs
            )
            self._nodes[name] = node = Node(name, at, disk)
            stack.callback(node.stop)
            with self._steps(f"{name}: containerd, images"):
                node.boot(list(NODES.values()), control_plane.credentials)
                for archive in archives:
                    node.import_image(archive)
            node.start_kubelet()
            node.start_proxy()
        with self._steps("nodes Ready, default ServiceAccount"):
            for name in NODES:
                self._wait_until(lambda name=name: self._is_ready(name), f"{name} is Ready")
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            self._wait_until(
                lambda: control_plane.api.find(account) is not None, "ServiceAccounts are made"
            )

    def _wait_until(self, condition, what: str) -> None:
        nodes = [process for node in self._nodes.values() for process in node.processes]
        self._control_plane.wait_until(condition, what, beside=nodes)

    def _is_ready(self, node: str) -> bool:
        return self._ready_condition(node).get("status") == "True"

    def _heartbeat(self, node: str) -> str:
        """Return the time of the kubelet's last report, or an empty string."""
        return self._ready_condition(node).get("lastHeartbeatTime", "")

    def _ready_condition(self, node: str) -> dict[str, Any]:
        found = self._control_plane.api.find(f"/api/v1/nodes/{node}") or {}
        conditions = found.get("status", {}).get("conditions", [])
        return next((item for item in conditions if item["type"] == "Ready"), {})


def remove_remains() -> None:
    """Remove the remains of a killed cluster. Raises ClusterError if a cluster is running."""
    with _only_one():
        _remove_remains()


def _remove_remains() -> None:
    """Remove everything that outlives a cluster's processes."""
    network.remove_links()
    cgroups.remove()
    shutil.rmtree(places.nodes_run(), ignore_errors=True)


@contextmanager
def _only_one() -> Iterator[None]:
    path = places.cache() / "nodes.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError("a cluster of nodes is up already on this machine") from None
        yield


def _resolving_by(resolver: Path) -> list[str]:
    """Return a command prefix with the cluster's DNS, which the CRD server needs for webhooks."""
    script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
    return ["unshare", "--mount", "--", "sh", "-c", script, str(resolver)]
