from ipaddress import ip_address, ip_network

from cluster import network
from cluster.node_cluster import NODES


def test_nodes_and_their_pods_have_addresses_of_their_own() -> None:
    nodes = list(NODES.values())
    assert len({node.address for node in nodes} | {network.MACHINE}) == len(nodes) + 1
    pods = [ip_network(node.pods) for node in nodes]
    assert all(each.subnet_of(network.PODS) for each in pods)
    assert not pods[0].overlaps(pods[1])
    assert not any(ip_address(node.address) in network.PODS for node in nodes)
    assert not network.PODS.overlaps(network.SERVICES)


def test_link_names_are_no_longer_than_the_kernel_takes() -> None:
    assert all(len(node.link) < 16 for node in NODES.values())
