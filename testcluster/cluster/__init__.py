"""Real Kubernetes clusters for tests, on one machine and from nothing but Debian's packages."""

from cluster.api_cluster import ApiCluster
from cluster.base import Cluster
from cluster.errors import ClusterError, KubectlError, UnsupportedError
from cluster.given_cluster import GivenCluster
from cluster.node_cluster import NodeCluster

__all__ = [
    "ApiCluster",
    "Cluster",
    "ClusterError",
    "GivenCluster",
    "KubectlError",
    "NodeCluster",
    "UnsupportedError",
]
