"""The lowest layer: a small Debian with Python, in place of python's image on Docker Hub."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.debian import Suite
from cluster.image_archive import write_layer

SUITE = "bookworm"
PACKAGES = (
    "base-files",
    "bash",  # Ray starts its workers with it
    "ca-certificates",
    "coreutils",
    "dash",
    "libc-bin",
    "libstdc++6",
    "python3.11",
    "util-linux",
)

# Packages are unpacked, not configured; these files their scripts would have made.
FILES = {
    "/etc/group": "root:x:0:\nmacroserve:x:65532:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "/etc/passwd": (
        "root:x:0:0:root:/root:/usr/sbin/nologin\n"
        "macroserve:x:65532:65532::/var/cache/macroserve:/usr/sbin/nologin\n"
    ),
    # The virtual environment that `python -m venv` would make.
    "/opt/macroserve/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\n",
}
LINKS = {
    "/opt/macroserve/bin/python": "/usr/bin/python3.11",
    "/opt/macroserve/bin/python3": "python",
    "/opt/macroserve/bin/python3.11": "python",
}
WRITABLE = "/var/cache/macroserve"
LEFT_OUT = (
    "/usr/share/doc",
    "/usr/share/info",
    "/usr/share/locale",
    "/usr/share/man",
    "/var/cache/ldconfig",
)


def write_base(target: Path, scratch: Path, packages: Sequence[str]) -> None:
    """Write the layer with Debian's `packages` besides those that every image has."""
    suite = Suite(SUITE, scratch / "debian")
    suite.unpack_with_dependencies(*PACKAGES, *packages)
    root = suite.root
    _merge_usr(root)
    _trust_certificates(root)
    for path, link in LINKS.items():
        at = root / path[1:]
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(link)
    writable = root / WRITABLE[1:]
    writable.mkdir(parents=True)
    writable.chmod(0o1777)
    subprocess.run(["/sbin/ldconfig", "-X", "-r", root], check=True)
    _drop_setuid(root)
    _compile_library(root)
    left_out = {root / path[1:] for path in LEFT_OUT}
    files = {path: text.encode() for path, text in FILES.items()}
    write_layer(target, {"/": root, **files}, keep=lambda path: path not in left_out)


def _merge_usr(root: Path) -> None:
    """Give /bin, /lib and the like their places below /usr, as every Debian has them."""
    for name in ("bin", "lib", "lib64", "sbin"):
        top = root / name
        if top.is_dir():
            subprocess.run(["cp", "--archive", f"{top}/.", root / "usr" / name], check=True)
            subprocess.run(["rm", "--recursive", top], check=True)
        top.symlink_to(f"usr/{name}")


def _trust_certificates(root: Path) -> None:
    certificates = sorted((root / "usr/share/ca-certificates/mozilla").glob("*.crt"))
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.write_bytes(b"".join(certificate.read_bytes() for certificate in certificates))


def _compile_library(root: Path) -> None:
    """Compile Python's own modules, as `images/finish.py` does all others."""
    subprocess.run(
        [
            *(sys.executable, "-m", "compileall", "-qq", "--invalidation-mode=unchecked-hash"),
            *("-s", root, "-p", "/", root / "usr/lib/python3.11"),
        ],
        check=True,
    )


def _drop_setuid(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o6000)
