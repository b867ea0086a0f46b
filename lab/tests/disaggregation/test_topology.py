"""KV caches take time to travel between instances."""

import pytest

from macroserve.sim.hardware.links import Link
from macroserve_lab.disaggregation.topology import KvTransfers, Topology, Transfer

FABRIC = Topology(2, Link("inside", 100.0, 0.5), Link("network", 10.0, 0.0))


def test_transfer_within_a_node_reaches_its_instances_alone():
    transfers = KvTransfers(FABRIC, Transfer.NODE)
    reach = {(a, b) for a in range(4) for b in range(4) if transfers.reaches(a, b)}
    assert reach == {(a, b) for a in range(4) for b in range(4) if a // 2 == b // 2}
    anywhere = KvTransfers(FABRIC, Transfer.NETWORK)
    assert all(anywhere.reaches(a, b) for a in range(4) for b in range(4))


def test_link_carries_one_cache_at_a_time():
    transfers = KvTransfers(FABRIC, Transfer.NODE)
    assert transfers.end_s(0, 1, 200.0, now=1.0) == pytest.approx(1.0 + 2.0 + 0.5)
    assert transfers.end_s(1, 0, 100.0, now=1.0) == pytest.approx(3.0 + 1.0 + 0.5)
    assert transfers.end_s(2, 3, 100.0, now=1.0) == pytest.approx(1.0 + 1.0 + 0.5), "another node"
    assert transfers.end_s(0, 1, 100.0, now=9.0) == pytest.approx(9.0 + 1.0 + 0.5), "it is free"


@pytest.mark.parametrize(
    ("second", "waits"),
    [
        ((0, 4), True),  # the same sender
        ((4, 2), True),  # the same receiver
        ((2, 0), False),  # the other way round: full duplex
        ((4, 6), False),
    ],
)
def test_network_transfer_occupies_the_link_of_both_nodes(second, waits):
    transfers = KvTransfers(FABRIC, Transfer.NETWORK)
    transfers.end_s(0, 2, 10.0, now=0.0)
    assert transfers.end_s(*second, 10.0, now=0.0) == pytest.approx(2.0 if waits else 1.0)
