"""Nodes, the links in and between them, and the KV caches that instances send over these links."""

from dataclasses import dataclass
from enum import StrEnum

from macroserve.sim.hardware.links import Link


class Transfer(StrEnum):
    """Instances to which a request's KV cache may travel."""

    NODE = "node"
    """Those of the same node (DistServe)."""
    NETWORK = "network"
    """All (MoonCake)."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Equal nodes.

    instances_per_node: number of successive instances on one node.
    inside: link between the instances of a node.
    network: link between each node and all others.
    """

    instances_per_node: int
    inside: Link
    network: Link

    def node(self, instance: int) -> int:
        return instance // self.instances_per_node


class KvTransfers:
    """KV caches in flight.

    A link carries one at a time, in the order in which they begin. A cache through the network
    takes the links of both nodes, the sender's out and the receiver's in (full duplex), as in
    MoonCake's pool of all nodes' memory.
    """

    def __init__(self, topology: Topology, transfer: Transfer) -> None:
        self._topology = topology
        self._transfer = transfer
        self._free_s: dict[tuple[str, int], float] = {}

    def domain(self, instance: int) -> int:
        """Return the domain of an instance: it reaches the instances of the same domain alone."""
        return self._topology.node(instance) if self._transfer is Transfer.NODE else 0

    def domain_size(self, num_instances: int) -> int:
        """Return the number of instances of one domain."""
        within_node = self._transfer is Transfer.NODE
        return self._topology.instances_per_node if within_node else num_instances

    def reaches(self, sender: int, receiver: int) -> bool:
        return self.domain(sender) == self.domain(receiver)

    def end_s(self, sender: int, receiver: int, num_bytes: float, now: float) -> float:
        """Return the time at which a cache arrives that leaves as soon as its links are free."""
        topology = self._topology
        if self._transfer is Transfer.NODE:
            link, ways = topology.inside, [("inside", topology.node(sender))]
        else:
            link = topology.network
            ways = [("out", topology.node(sender)), ("in", topology.node(receiver))]
        start_s = max(now, *(self._free_s.get(way, 0.0) for way in ways))
        end_s = start_s + num_bytes / link.bytes_per_s
        self._free_s.update(dict.fromkeys(ways, end_s))
        return end_s + link.latency_s
