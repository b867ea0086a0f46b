"""The cluster's network: one bridge on the machine, and a network namespace for each node.

The machine and the nodes reach each other and all pods. A Service's address is routed from the
machine to the first node, whose kube-proxy forwards it. All rules and routes are in the nodes'
namespaces, except the bridge's routes, so nothing remains without nodes and bridge. Pods reach
nothing outside the machine.
"""

import ipaddress
import subprocess
from dataclasses import dataclass
from pathlib import Path

_BRIDGE = "macroserve-e2e"
_MACHINE = ipaddress.ip_interface("10.230.0.1/24")
PODS = ipaddress.ip_network("10.244.0.0/16")
SERVICES = ipaddress.ip_network("10.96.0.0/16")

MACHINE = str(_MACHINE.ip)
"""The machine's address for nodes and pods, used by the API server and DNS."""


@dataclass(frozen=True)
class NodeNetwork:
    number: int
    """Number of the node, from 1."""

    @property
    def address(self) -> str:
        return str(_MACHINE.network[10 + self.number])

    @property
    def pods(self) -> str:
        """The addresses of the node's pods."""
        return str(list(PODS.subnets(new_prefix=24))[self.number])

    @property
    def link(self) -> str:
        return f"{_BRIDGE}{self.number}"


def create_bridge() -> None:
    _ip(
        f"link add {_BRIDGE} type bridge",
        f"addr add {_MACHINE} dev {_BRIDGE}",
        f"link set {_BRIDGE} up",
    )


def attach(node: NodeNetwork, nodes: list[NodeNetwork], pid: int) -> None:
    """Connect the network namespace of process `pid` as `node`, one of `nodes`."""
    _ip(
        f"link add {node.link} type veth peer name eth0 netns {pid}",
        f"link set {node.link} master {_BRIDGE} up",
    )
    _ip(
        "link set lo up",
        f"addr add {node.address}/{_MACHINE.network.prefixlen} dev eth0",
        "link set eth0 up",
        f"route add default via {MACHINE}",
        *(f"route add {other.pods} via {other.address}" for other in nodes if other != node),
        namespace_of=pid,
    )
    _ip(f"route add {node.pods} via {node.address}")
    if node == nodes[0]:
        _ip(f"route add {SERVICES} via {node.address}")


def remove_links() -> None:
    """Remove the network links that a cluster has left, if any."""
    for link in Path("/sys/class/net").glob(f"{_BRIDGE}*"):
        try:
            _ip(f"link delete {link.name}")
        except subprocess.CalledProcessError:
            # The kernel removes a link with its node's namespace, but not at once.
            if link.exists():
                raise


def _ip(*commands: str, namespace_of: int | None = None) -> None:
    enter = ["nsenter", f"--net=/proc/{namespace_of}/ns/net"] if namespace_of else []
    subprocess.run(
        [*enter, "ip", "-batch", "-"], input="\n".join(commands), text=True, check=True,
        capture_output=True,
    )  # fmt: skip
