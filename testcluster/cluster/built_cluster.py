"""The common part of built clusters of both tiers."""

from pathlib import Path
from typing import Any

from cluster import apiservices
from cluster.base import Cluster
from cluster.capabilities import Capability
from cluster.control_plane import ControlPlane


class BuiltCluster(Cluster):
    capabilities = frozenset({Capability.AUDIT_LOG, Capability.STOP_API_SERVER})
    _control_plane: ControlPlane

    def _use(self, control_plane: ControlPlane) -> None:
        """Set the control plane, after its start."""
        self._control_plane = control_plane
        self.kubeconfig = control_plane.kubeconfig
        self.kubectl_command = control_plane.kubectl_command

    @property
    def binaries(self) -> Path:
        """The folder of the built binaries: kubectl, prometheus, alertmanager, promtool..."""
        return self._control_plane.binaries

    @property
    def directory(self) -> Path:
        """The folder of all of the cluster's files, removed with the cluster."""
        return self._control_plane.directory

    @property
    def logs(self) -> Path:
        """The folder of the processes' logs, in `directory`."""
        return self._control_plane.logs

    @property
    def audit_log(self) -> Path:
        return self._control_plane.audit_log

    def _is_registered(self, api_service: dict[str, Any]) -> bool:
        return not self._control_plane.has_crd_server or apiservices.is_registered(api_service)

    def stop_apiserver(self) -> None:
        self._control_plane.stop_api_server()

    def start_apiserver(self) -> None:
        self._control_plane.start_api_server()
