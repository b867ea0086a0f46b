"""What can go wrong with a test cluster."""

import subprocess
from unittest import SkipTest


class ClusterError(Exception):
    """The cluster did not come up, or does not do what was asked; the message tells why."""


class UnsupportedError(ClusterError, SkipTest):
    """This kind of cluster cannot do that. A test that meets it is skipped, not failed."""


class KubectlError(subprocess.CalledProcessError):
    """kubectl refused; its words are the message."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.stderr}"
