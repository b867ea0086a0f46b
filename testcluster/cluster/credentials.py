"""The keys and certificates of one cluster, and the users that they authenticate."""

from collections.abc import Sequence
from pathlib import Path

from cluster.api import Access
from cluster.pki import Authority, KeyPair, token_keys, write_kubeconfig

_ADMINISTRATORS = "system:masters"


class Credentials:
    """A cluster's certificate authorities. `url`: of the API server; `server_names`: names in its
    and the CRD server's certificates, in openssl's format (`IP:127.0.0.1`, `DNS:localhost`)."""

    def __init__(self, directory: Path, url: str, server_names: Sequence[str]) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._url = url
        self.authority = Authority(directory, "kubernetes-ca")
        self.front_authority = Authority(directory, "front-proxy-ca")
        """Authority of the API server as a client of servers behind it, on behalf of its users."""
        self.front_proxy = self.front_authority.client("front-proxy", "front-proxy-client")
        self.server = self.authority.server("kube-apiserver", server_names)
        self.kubelet_client = self.administrator("kube-apiserver-kubelet-client")
        self.tokens = token_keys(directory)

    def administrator(self, name: str) -> KeyPair:
        """Return a key pair with all rights."""
        return self.authority.client(name, name, _ADMINISTRATORS)

    def access(self, name: str) -> Access:
        """Return access with all rights for a part of the test cluster."""
        client = self.administrator(name)
        authority = self.authority.certificate
        return Access(self._url, str(authority), str(client.certificate), str(client.key))

    def kubeconfig(self, name: str, client: KeyPair) -> Path:
        path = self._directory / f"{name}.kubeconfig"
        return write_kubeconfig(path, self._url, self.authority.certificate, client)

    def component_kubeconfig(self, name: str) -> Path:
        """Return a kubeconfig with the default rights of a Kubernetes component."""
        return self.kubeconfig(name, self.authority.client(name, f"system:{name}"))

    def node_kubeconfig(self, node: str) -> Path:
        client = self.authority.client(node, f"system:node:{node}", "system:nodes")
        return self.kubeconfig(node, client)
