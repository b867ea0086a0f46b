"""Commands in an image with the restrictions of the chart's pods, by runc, without a cluster."""

import json
import shutil
import subprocess
import tarfile
import uuid
from pathlib import Path
from typing import Any

WRITABLE = ("/tmp", "/var/cache/macroserve")
"""Paths at which pods have a volume."""

_COPY_BYTES = 1 << 20


class Container:
    """An image's unpacked files and its configuration."""

    def __init__(self, archive: Path, folder: Path, runc: Path) -> None:
        self._folder = folder
        self._runc = runc
        self.root = folder / "rootfs"
        self.root.mkdir(parents=True)
        with tarfile.open(archive) as tar:
            (manifest,) = _document(tar, "index.json")["manifests"]
            image = _document(tar, _blob(manifest))
            self.config: dict[str, Any] = _document(tar, _blob(image["config"]))["config"]
            for layer in image["layers"]:
                self._unpack(tar, layer)

    def run(self, *command: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command with a read-only root, the image's user, no capability and no network."""
        (self._folder / "config.json").write_text(json.dumps(self._specification(command)))
        return subprocess.run(
            [self._runc, "run", "--bundle", self._folder, f"macroserve-{uuid.uuid4()}"],
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def _unpack(self, tar: tarfile.TarFile, descriptor: dict[str, Any]) -> None:
        name = _blob(descriptor)
        layer = tar.extractfile(name)
        assert layer is not None, "a layer is a file"
        command = ["tar", "--extract", "--directory", self.root]
        if descriptor["mediaType"].endswith("gzip"):  # possible in Docker's archives
            command.append("--gunzip")
        with subprocess.Popen(command, stdin=subprocess.PIPE) as unpacking:
            assert unpacking.stdin is not None
            shutil.copyfileobj(layer, unpacking.stdin, _COPY_BYTES)
        assert unpacking.returncode == 0, name

    def _specification(self, command: tuple[str, ...]) -> dict[str, Any]:
        user, group = map(int, self.config["User"].split(":"))
        tmpfs = {"type": "tmpfs", "source": "tmpfs"}
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": user, "gid": group},
                "args": command,
                "env": self.config["Env"],
                "cwd": self.config["WorkingDir"],
                "noNewPrivileges": True,
            },
            "root": {"path": "rootfs", "readonly": True},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "options": ["mode=755"], **tmpfs},
                *({"destination": path, "options": ["mode=1777"], **tmpfs} for path in WRITABLE),
            ],
            "linux": {
                "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]
            },
        }


def _document(tar: tarfile.TarFile, name: str) -> dict[str, Any]:
    file = tar.extractfile(name)
    assert file is not None, f"{name} is a file"
    return json.load(file)


def _blob(descriptor: dict[str, Any]) -> str:
    return "blobs/" + descriptor["digest"].replace(":", "/")
