"""Kubernetes clusters for tests: built from Debian's packages, created by kind, or existing."""

from cluster.api_cluster import ApiCluster
from cluster.base import Cluster
from cluster.capabilities import Capability
from cluster.errors import ClusterError, KubectlError, UnsupportedError
from cluster.given_cluster import GivenCluster
from cluster.kind_cluster import KindCluster
from cluster.node_cluster import NodeCluster

__all__ = [
    "ApiCluster",
    "Capability",
    "Cluster",
    "ClusterError",
    "GivenCluster",
    "KindCluster",
    "KubectlError",
    "NodeCluster",
    "UnsupportedError",
]
