"""The errors of a test cluster."""

import subprocess
from unittest import SkipTest

from cluster.capabilities import Capability


class ClusterError(Exception):
    """The cluster did not come up, or does not do what was asked; the message tells why."""


class UnsupportedError(ClusterError, SkipTest):
    """The cluster lacks a capability. A test that meets this error is skipped, not failed."""

    def __init__(self, capability: Capability) -> None:
        super().__init__(f"this cluster cannot {capability}")


class KubectlError(subprocess.CalledProcessError):
    """kubectl refused; its words are the message."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.stderr}"
