"""Links between devices and between nodes, with achievable rates."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    name: str
    bytes_per_s: float
    """Bytes per second in one direction."""
    latency_s: float
    """Latency per message, seconds."""

    def all_reduce_s(self, num_bytes: float, num_devices: int) -> float:
        """Return the seconds of a ring all-reduce: each device sends all other shares twice."""
        if num_devices == 1:
            return 0.0
        hops = 2 * (num_devices - 1)
        return hops * (self.latency_s + num_bytes / num_devices / self.bytes_per_s)

    def all_gather_s(self, num_bytes: float, num_devices: int) -> float:
        """Return the seconds of a ring all-gather."""
        return self.all_reduce_s(num_bytes, num_devices) / 2


# Bus bandwidths of NCCL's all-reduce as commonly reported: about 85 % of NVLink's rate one way, and
# four fifths of a PCIe 4.0 x16 slot's 25 GB/s.
NVLINK_3 = Link("NVLink 3", 230e9, 3e-6)
NVLINK_4 = Link("NVLink 4", 360e9, 3e-6)
PCIE_4 = Link("PCIe 4.0 x16", 20e9, 8e-6)
# TCP reaches about nine tenths of the line, RDMA nearly all of it.
ETHERNET_10G = Link("10 Gb/s Ethernet", 1.12e9, 50e-6)
ETHERNET_100G = Link("100 Gb/s Ethernet", 11.2e9, 50e-6)
ROCE_25G = Link("25 Gb/s RoCE", 2.9e9, 10e-6)

LINKS = {
    "nvlink3": NVLINK_3,
    "nvlink4": NVLINK_4,
    "pcie4": PCIE_4,
    "ethernet-10g": ETHERNET_10G,
    "ethernet-100g": ETHERNET_100G,
    "roce-25g": ROCE_25G,
}
