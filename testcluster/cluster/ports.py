"""Free ports for servers on one address."""

import random
import socket
from pathlib import Path


def free(address: str, count: int) -> list[int]:
    """Return random unused ports, below the range of outgoing connections, so that clusters that
    start at the same time rarely collide."""
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = random.sample(range(first_outgoing - 10_000, first_outgoing), 1000)
    found = (port for port in candidates if _is_free(address, port))
    return [next(found) for _ in range(count)]


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
