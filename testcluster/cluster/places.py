"""The functions here return the paths of all files outside the checkout."""

import os
from pathlib import Path


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "macroserve" / "e2e"


def binaries() -> Path:
    """Kubernetes, etcd, containerd and the rest, as `python -m cluster build` leaves them."""
    return cache() / "bin"


def parts() -> Path:
    """Binaries by recipe, which `binaries` links to."""
    return cache() / "parts"


def images() -> Path:
    """Image archives, kept from run to run."""
    return cache() / "images"


def image_store(node: str) -> Path:
    """A node's containerd root: images stay unpacked from run to run."""
    return cache() / "nodes" / node


def nodes_run() -> Path:
    """Return the folder of all other state of the one node cluster that a machine can run."""
    return cache() / "run"
