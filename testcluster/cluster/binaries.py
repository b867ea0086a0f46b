"""The built binaries: there once for all clusters of a machine, or not at all."""

import fcntl
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import debian, places, recipes
from cluster.debian import Suite
from cluster.errors import ClusterError
from cluster.steps import Steps

_STAMP = "built.json"


def find() -> Path:
    """The folder of the binaries. Raises ClusterError if they are not built."""
    folder = places.binaries()
    if not _is_current(folder):
        raise ClusterError(f"no binaries in {folder}: run `make cluster-build` (once, 7 minutes)")
    return folder


def build(steps: Steps) -> Path:
    """Build what is not there. Interrupted, it leaves nothing behind."""
    target = places.binaries()
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(target.parent / "build.lock"):
        if not _is_current(target):
            with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
                built = _build(Path(scratch), steps)
                shutil.rmtree(target, ignore_errors=True)
                built.rename(target)
    return target


def _build(scratch: Path, steps: Steps) -> Path:
    target = scratch / "bin"
    target.mkdir()
    with steps("Debian's own binaries and Go (download)"):
        bookworm = Suite("bookworm", scratch / "bookworm")
        recipes.unpack_debian(bookworm, target)
    with steps(f"Kubernetes {recipes.KUBERNETES} (download, compile)"):
        recipes.build_kubernetes(bookworm, scratch / "kubernetes", target)
    with steps("pause"):
        recipes.build_pause(bookworm, scratch / "kubernetes", target)
    shutil.rmtree(scratch / "kubernetes")
    with steps("CRD server (download, compile)"):
        sid = Suite("sid", scratch / "sid")
        crd_server = recipes.build_crd_server(sid, scratch / "crd-server", target)
    versions = {"kubernetes": recipes.KUBERNETES, "crd server": crd_server}
    stamp = {"recipe": _recipe(), "versions": versions}
    (target / _STAMP).write_text(json.dumps(stamp, indent=2))
    return target


def _is_current(folder: Path) -> bool:
    stamp = folder / _STAMP
    return stamp.exists() and json.loads(stamp.read_text())["recipe"] == _recipe()


def _recipe() -> str:
    """Changes with whatever says how the binaries are made."""
    sources = (recipes.__file__, debian.__file__, recipes.PAUSE)
    digest = hashlib.sha256()
    for source in sources:
        digest.update(Path(source).read_bytes())
    return digest.hexdigest()


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
