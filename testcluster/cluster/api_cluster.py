"""A Kubernetes API without nodes: for tests of what only talks to it. Needs no root."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from cluster import binaries, packages, ports
from cluster.built_cluster import BuiltCluster
from cluster.control_plane import ControlPlane, Settings
from cluster.steps import Steps

_ADDRESS = "127.0.0.1"
_FLAGS = (
    # No node will ever reach this address.
    "--endpoint-reconciler-type=none",
    # Without controllers a namespace gets no ServiceAccount, and no pod could be made in it.
    "--disable-admission-plugins=ServiceAccount",
)
# By itself it looks at what there is to scale four times a minute.
_CONTROLLERS_FLAGS = ("--horizontal-pod-autoscaler-sync-period=1s",)


class ApiCluster(BuiltCluster):
    """etcd, the API server and the CRD server on loopback ports of their own.

    Any number can be up at a time. Pods can be made but never run. controllers: also run
    kube-controller-manager, for deletion (owners' and namespaces'), Deployments and the like.
    Use it in a thread that lives as long as the cluster: its processes end with the thread.
    """

    def __init__(self, controllers: bool = False, steps: Steps | None = None) -> None:
        self._controllers = controllers
        self._steps = steps or Steps(quiet=True)

    def __enter__(self) -> "ApiCluster":
        packages.require(packages.API_TIER)
        with ExitStack() as stack:
            directory = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="macroserve-cluster-"))
            )
            (port,) = ports.free(_ADDRESS, 1)
            settings = Settings(directory, binaries.find(), _ADDRESS, port, _FLAGS)
            control_plane = ControlPlane(settings)
            stack.callback(control_plane.stop)
            control_plane.start(self._steps)
            if self._controllers:
                control_plane.start_controllers(*_CONTROLLERS_FLAGS)
            self._use(control_plane)
            self._leave = stack.pop_all().close
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
