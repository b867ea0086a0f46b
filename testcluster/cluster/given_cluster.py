"""A cluster that is there already, whoever made it."""

import os
import shutil
from pathlib import Path

from cluster import binaries
from cluster.base import Cluster
from cluster.errors import ClusterError


class GivenCluster(Cluster):
    """The one that `KUBECONFIG` names; nothing is started, and what tests leave stays there."""

    def __init__(self) -> None:
        try:
            self.kubeconfig = Path(os.environ["KUBECONFIG"])
        except KeyError:
            raise ClusterError("KUBECONFIG names no cluster") from None
        # Its own kubectl fits its version better than the one that is built here.
        installed = shutil.which("kubectl")
        kubectl = Path(installed) if installed else binaries.find() / "kubectl"
        self.kubectl_command = [kubectl, f"--kubeconfig={self.kubeconfig}"]

    def __enter__(self) -> "GivenCluster":
        return self

    def __exit__(self, *_: object) -> None:
        pass
