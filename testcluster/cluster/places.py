"""Paths of all files outside the checkout."""

import os
from pathlib import Path


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "macroserve" / "e2e"


def binaries() -> Path:
    """Return the folder of the programs built by `python -m cluster build`."""
    return cache() / "bin"


def parts() -> Path:
    """Return the folder of binaries by recipe, which `binaries` links to."""
    return cache() / "parts"


def images() -> Path:
    """Return the folder of image archives, kept between runs."""
    return cache() / "images"


def image_store(node: str) -> Path:
    """Return a node's containerd root, in which images stay unpacked between runs."""
    return cache() / "nodes" / node


def nodes_run() -> Path:
    """Return the folder of all other state of the machine's only node cluster."""
    return cache() / "run"
