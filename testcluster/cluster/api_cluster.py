"""A Kubernetes API without nodes, for tests that need no running pods. It needs no root."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from cluster import binaries, packages, ports
from cluster.built_cluster import BuiltCluster
from cluster.control_plane import ControlPlane, Settings
from cluster.steps import Steps

_ADDRESS = "127.0.0.1"
_FLAGS = (
    # No node uses this address.
    "--endpoint-reconciler-type=none",
    # Without controllers a namespace gets no ServiceAccount, which this plugin requires of pods.
    "--disable-admission-plugins=ServiceAccount",
)
# The default is 15 s.
_CONTROLLERS_FLAGS = ("--horizontal-pod-autoscaler-sync-period=1s",)


class ApiCluster(BuiltCluster):
    """etcd, the API server and the CRD server on separate loopback ports.

    Any number can run at a time. Pods can be created but never run. controllers: also run
    kube-controller-manager, for Deployments and for garbage collection, also of namespaces.
    The processes end with the thread that starts the cluster.
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
