"""Programs that Debian has built: etcd, containerd, Prometheus and more.

Packages that carry a daemon are unpacked, not installed: nothing starts or listens.
"""

import shutil
from pathlib import Path

from cluster.debian import Suite

_PACKAGES = (
    *("etcd-server", "containerd", "runc", "containernetworking-plugins", "busybox-static"),
    *("kubernetes-client", "prometheus", "prometheus-alertmanager"),
)
_UNPACKED = {
    "etcd": "usr/bin/etcd",
    "containerd": "usr/bin/containerd",
    "containerd-shim-runc-v2": "usr/bin/containerd-shim-runc-v2",
    "ctr": "usr/bin/ctr",
    "runc": "usr/sbin/runc",
    "prometheus": "usr/bin/prometheus",
    "promtool": "usr/bin/promtool",
    "alertmanager": "usr/bin/prometheus-alertmanager",
    "amtool": "usr/bin/amtool",
    "busybox": "usr/bin/busybox",
    "kubectl": "usr/bin/kubectl",
    **{f"cni/{plugin}": f"usr/lib/cni/{plugin}" for plugin in ("bridge", "host-local", "loopback")},
}
_INSTALLED_TEMPLATES = b"/usr/share/prometheus/alertmanager"
_TEMPLATES = b"./" * 6 + b"alertmanager-templates"
"""As long as that path, which it replaces in a program."""


def make(scratch: Path, target: Path) -> dict[str, str]:
    bookworm = Suite("bookworm", scratch / "bookworm")
    bookworm.unpack(*_PACKAGES)
    (target / "cni").mkdir()
    for name, path in _UNPACKED.items():
        source = bookworm.root / path
        # Before Debian merged /usr, some packages had files in /bin.
        shutil.copy2(
            source if source.exists() else bookworm.root / path.removeprefix("usr/"), target / name
        )
    _take_templates(bookworm.root, target)
    return {}


def _take_templates(root: Path, target: Path) -> None:
    """Let Alertmanager look for its templates, without which Debian's does not start, in the folder
    from which it is started instead of where an installed package has them."""
    assert len(_TEMPLATES) == len(_INSTALLED_TEMPLATES)
    shutil.copytree(root / _INSTALLED_TEMPLATES.decode().lstrip("/"), target / _TEMPLATES.decode())
    program = target / "alertmanager"
    changed = program.read_bytes().replace(_INSTALLED_TEMPLATES, _TEMPLATES)
    program.write_bytes(changed)
