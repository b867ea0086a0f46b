"""The errors of a test cluster."""

import subprocess
from unittest import SkipTest

from cluster.capabilities import Capability


class ClusterError(Exception):
    """A cluster that failed to start or to do an operation, with the cause."""


class UnsupportedError(ClusterError, SkipTest):
    """A missing capability of a cluster; the error skips the test."""

    def __init__(self, capability: Capability) -> None:
        super().__init__(f"this cluster cannot {capability}")


class KubectlError(subprocess.CalledProcessError):
    """A failure of kubectl, with its output."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.stderr}"
