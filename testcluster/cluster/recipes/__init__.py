"""Recipes for the binaries of a test cluster, which are built separately and without root."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from cluster import debian as suites
from cluster.recipes import debian, go, kubectl, kubernetes, newest


@dataclass(frozen=True)
class Recipe:
    """A recipe for one part of the binaries.

    Attributes:
        make: writes the binaries to its second argument, with the first one as a scratch folder,
            and returns versions by name.
        sources: files that the binaries depend on.
    """

    name: str
    title: str
    make: Callable[[Path, Path], Mapping[str, str]]
    sources: tuple[Path, ...]

    @property
    def digest(self) -> str:
        """Return a hash of the sources."""
        digest = hashlib.sha256()
        for source in self.sources:
            digest.update(source.read_bytes())
        return digest.hexdigest()[:16]


def _files(*modules: ModuleType) -> tuple[Path, ...]:
    return tuple(Path(inspect.getfile(module)) for module in modules)


RECIPES = (
    Recipe(
        "debian",
        "etcd, containerd, Prometheus and others (download)",
        debian.make,
        _files(debian, suites),
    ),
    Recipe(
        "kubectl",
        "newest kubectl (download)",
        kubectl.make,
        (*_files(kubectl), kubectl.LOCK),
    ),
    Recipe(
        "kubernetes",
        f"Kubernetes {kubernetes.VERSION} (download, compile)",
        kubernetes.make,
        (*_files(kubernetes, go, suites), kubernetes.PAUSE),
    ),
    Recipe(
        "newest",
        "CRD server and types of the newest Kubernetes (download, compile)",
        newest.make,
        (*_files(newest, go, suites), newest.DECODER),
    ),
)
