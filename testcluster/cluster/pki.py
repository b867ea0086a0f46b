"""Certificates of a cluster, made by openssl."""

import base64
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_DAYS = "365"


@dataclass(frozen=True)
class KeyPair:
    """A private key with its certificate or, for tokens, its public key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority with all its files in one directory."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self.pair = _paths(directory, name)
        _openssl(
            *("req", "-x509", *_NEW_KEY, "-days", _DAYS, "-subj", f"/CN={name}"),
            *("-keyout", self.pair.key, "-out", self.pair.certificate),
            *("-addext", "basicConstraints=critical,CA:TRUE"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    @property
    def certificate(self) -> Path:
        return self.pair.certificate

    def client(self, name: str, user: str, group: str = "") -> KeyPair:
        """Return a client certificate of `user`, a member of `group`."""
        subject = f"/O={group}/CN={user}" if group else f"/CN={user}"
        return self._issue(name, subject, "clientAuth", ())

    def server(self, name: str, alternative_names: Sequence[str]) -> KeyPair:
        """Return a server certificate; names are like `IP:127.0.0.1`, `DNS:localhost`."""
        return self._issue(name, f"/CN={name}", "serverAuth", alternative_names)

    def _issue(
        self, name: str, subject: str, usage: str, alternative_names: Sequence[str]
    ) -> KeyPair:
        pair = _paths(self._directory, name)
        extensions = ["basicConstraints=critical,CA:FALSE", f"extendedKeyUsage={usage}"]
        if alternative_names:
            extensions.append(f"subjectAltName={','.join(alternative_names)}")
        _openssl(
            *("req", "-x509", *_NEW_KEY, "-days", _DAYS, "-subj", subject),
            *("-CA", self.pair.certificate, "-CAkey", self.pair.key),
            *("-keyout", pair.key, "-out", pair.certificate),
            *(argument for extension in extensions for argument in ("-addext", extension)),
        )
        return pair


def token_keys(directory: Path) -> KeyPair:
    """Return the key pair that signs and checks the tokens of service accounts."""
    pair = KeyPair(directory / "tokens.pub", directory / "tokens.key")
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", pair.key)
    _openssl("ec", "-in", pair.key, "-pubout", "-out", pair.certificate)
    return pair


def write_kubeconfig(path: Path, server: str, authority: Path, client: KeyPair) -> Path:
    """Write a kubeconfig with embedded credentials; return `path`."""
    cluster = {"server": server, "certificate-authority-data": _base64(authority)}
    user = {
        "client-certificate-data": _base64(client.certificate),
        "client-key-data": _base64(client.key),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "macroserve", "cluster": cluster}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "macroserve", "context": {"cluster": "macroserve", "user": "user"}}],
        "current-context": "macroserve",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=2))  # JSON is YAML
    return path


def _paths(directory: Path, name: str) -> KeyPair:
    return KeyPair(directory / f"{name}.crt", directory / f"{name}.key")


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
