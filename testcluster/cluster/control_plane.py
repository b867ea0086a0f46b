"""etcd, the API server, the CRD server behind it, and optionally the controllers.

A release's API server supports CEL and needs no separate CRD server. With built binaries, the CRD
server is that of a newer Kubernetes, behind the API server's aggregation layer, so that clients see
one API. It handles custom resources completely, calls of webhooks included.
"""

import base64
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster import apiservices, ports
from cluster.api import Api
from cluster.credentials import Credentials
from cluster.network import SERVICES
from cluster.processes import Process, wait_until
from cluster.steps import Steps

_PACKAGE = Path(__file__).parent
_AUDIT_POLICY = _PACKAGE / "files" / "audit-policy.yaml"
_LOOPBACK = "127.0.0.1"
_START_S = 60.0
_CRD_SERVICE = {"name": "crd-server", "namespace": "kube-system"}
_NO_CRDS = "apiextensions.k8s.io/v1=false,apiextensions.k8s.io/v1beta1=false"
_CRD_CHECKS = (
    "poststarthook/crd-informer-synced",
    "poststarthook/start-apiextensions-controllers",
)


@dataclass(frozen=True)
class Settings:
    """Settings that differ between the tiers."""

    directory: Path
    """Existing folder for all files."""
    binaries: Path
    address: str
    port: int
    """Port of the API server."""
    api_server_flags: Sequence[str]
    crd_server_prefix: Sequence[str] = ()
    """Command that runs the CRD server, if needed."""


class ControlPlane:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.audit_log = settings.directory / "audit.log"
        self.directory = settings.directory
        self.binaries = settings.binaries
        self.has_crd_server = (settings.binaries / "apiextensions-apiserver").exists()
        """Whether CRDs have a separate server, as the API server is too old for CEL rules."""
        self.logs = settings.directory / "logs"
        self.logs.mkdir()
        url = f"https://{settings.address}:{settings.port}"
        names = (
            *(f"IP:{settings.address}", f"IP:{_LOOPBACK}", f"IP:{SERVICES[1]}", "DNS:localhost"),
            *("DNS:kubernetes.default", "DNS:kubernetes.default.svc"),
            f"DNS:{_CRD_SERVICE['name']}.{_CRD_SERVICE['namespace']}.svc",
        )
        self.credentials = Credentials(settings.directory / "pki", url, names)
        admin = self.credentials.administrator("admin")
        self.kubeconfig = self.credentials.kubeconfig("admin", admin)
        # kubectl's default cache would outlive the cluster, whose address may be reused.
        cache = settings.directory / "kubectl-cache"
        self.kubectl_command = [
            settings.binaries / "kubectl",
            f"--kubeconfig={self.kubeconfig}",
            f"--cache-dir={cache}",
        ]
        self.api = Api(self.credentials.access("cluster"))
        etcd_port, etcd_peer_port, self._crd_port = ports.free(_LOOPBACK, 3)
        self._etcd = f"http://{_LOOPBACK}:{etcd_port}"
        self._etcd_peer = f"http://{_LOOPBACK}:{etcd_peer_port}"
        self._processes: dict[str, Process] = {}

    def start(self, steps: Steps) -> None:
        """Start all servers; return when the API server answers and CRDs are served."""
        with steps("etcd, API server"):
            self._start_etcd()
            self._run_api_server()
            # These checks of the API server wait for CRDs, which another server may have.
            unseen = _CRD_CHECKS if self.has_crd_server else ()
            self.wait_until(lambda: self.api.is_ready(without=unseen), "the API server is ready")
        if self.has_crd_server:
            with steps("CRD server"):
                self._start_crd_server()
        # The last object that the API server creates.
        default = "/api/v1/namespaces/default"
        self.wait_until(lambda: self.api.find(default) is not None, "all is ready")

    def start_api_server(self) -> None:
        """Start the API server again after `stop_api_server`."""
        self._run_api_server()
        self.wait_until(self.api.is_ready, "the API server is ready")

    def _run_api_server(self) -> None:
        credentials = self.credentials
        self._run(
            "kube-apiserver",
            *self._serving(self._settings.address, self._settings.port),
            f"--service-account-key-file={credentials.tokens.certificate}",
            f"--service-account-signing-key-file={credentials.tokens.key}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--service-cluster-ip-range={SERVICES}",
            *([f"--runtime-config={_NO_CRDS}"] if self.has_crd_server else []),
            f"--kubelet-certificate-authority={credentials.authority.certificate}",
            f"--kubelet-client-certificate={credentials.kubelet_client.certificate}",
            f"--kubelet-client-key={credentials.kubelet_client.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--proxy-client-cert-file={credentials.front_proxy.certificate}",
            f"--proxy-client-key-file={credentials.front_proxy.key}",
            f"--audit-policy-file={_AUDIT_POLICY}",
            f"--audit-log-path={self.audit_log}",
            *self._settings.api_server_flags,
        )

    def stop_api_server(self) -> None:
        """Kill the API server, as in a crash: all connections break."""
        self._processes.pop("kube-apiserver").kill()

    def start_controllers(self, *flags: str) -> None:
        credentials = self.credentials
        self._run(
            "kube-controller-manager",
            f"--kubeconfig={credentials.component_kubeconfig('kube-controller-manager')}",
            f"--root-ca-file={credentials.authority.certificate}",
            f"--service-account-private-key-file={credentials.tokens.key}",
            "--use-service-account-credentials",
            *self._unserved,
            *flags,
        )

    def start_scheduler(self) -> None:
        kubeconfig = self.credentials.component_kubeconfig("kube-scheduler")
        self._run("kube-scheduler", f"--kubeconfig={kubeconfig}", *self._unserved)

    @property
    def _unserved(self) -> list[str]:
        """Flags that turn off a component's unused metrics port."""
        # Kubernetes 1.24 removed the port for plain HTTP.
        plain = ["--port=0"] if self.has_crd_server else []
        return [*plain, "--secure-port=0", "--leader-elect=false"]

    def run(self, name: str, command: Sequence[str | Path], python_path: str = "") -> None:
        """Run a further program as long as the cluster runs."""
        log = self.logs / f"{name}.log"
        environment = {"PYTHONPATH": python_path} if python_path else None
        self._processes[name] = Process(name, command, log, environment)

    def run_module(self, name: str, *arguments: str) -> None:
        """Run a module of this package, with arguments for full access to the API and others."""
        access = self.credentials.access(name).arguments
        command = [sys.executable, "-m", f"{__package__}.{name}", *access, *arguments]
        self.run(name, command, python_path=str(_PACKAGE.parent))

    def wait_until(
        self, condition: Callable[[], bool], what: str, beside: Sequence[Process] = ()
    ) -> None:
        """Wait for a condition. Raises ClusterError after a time limit, or if one of the cluster's
        processes or of `beside` has ended."""
        wait_until(condition, what, _START_S, [*self._processes.values(), *beside])

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
        self._processes.clear()
        self.api.close()

    def _start_etcd(self) -> None:
        self._run(
            "etcd",
            f"--data-dir={self._settings.directory / 'etcd'}",
            f"--listen-client-urls={self._etcd}",
            f"--advertise-client-urls={self._etcd}",
            f"--listen-peer-urls={self._etcd_peer}",
            f"--initial-advertise-peer-urls={self._etcd_peer}",
            f"--initial-cluster=default={self._etcd_peer}",
        )

    def _start_crd_server(self) -> None:
        self._run(
            "apiextensions-apiserver",
            *self._serving(_LOOPBACK, self._crd_port),
            "--etcd-prefix=/registry",  # as in the API server, which also cleans up deleted CRDs
            f"--kubeconfig={self.kubeconfig}",
            f"--authentication-kubeconfig={self.kubeconfig}",
            f"--authorization-kubeconfig={self.kubeconfig}",
            # These need a newer API server.
            "--enable-priority-and-fairness=false",
            "--disable-admission-plugins=MutatingAdmissionPolicy,ValidatingAdmissionPolicy",
            prefix=self._settings.crd_server_prefix,
        )
        authority = base64.b64encode(self.credentials.authority.certificate.read_bytes())
        backend = apiservices.Backend(
            **_CRD_SERVICE, port=self._crd_port, authority=authority.decode()
        )
        apiservices.serve_crds_by(backend, self.api)
        self.wait_until(lambda: apiservices.are_crds_served(self.api), "CRDs are served")
        self.run_module("registrar", backend.to_json())

    def _serving(self, address: str, port: int) -> list[str]:
        """Flags of all API servers."""
        credentials = self.credentials
        return [
            f"--etcd-servers={self._etcd}",
            f"--bind-address={address}",
            f"--secure-port={port}",
            f"--tls-cert-file={credentials.server.certificate}",
            f"--tls-private-key-file={credentials.server.key}",
            f"--client-ca-file={credentials.authority.certificate}",
            f"--requestheader-client-ca-file={credentials.front_authority.certificate}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        ]

    def _run(self, name: str, *flags: str, prefix: Sequence[str] = ()) -> None:
        self.run(name, [*prefix, self.binaries / name, *flags])
