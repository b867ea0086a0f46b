"""The layers above the base: Python packages, installed and finished as in the Dockerfiles."""

import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from cluster.image_archive import write_layer

ROOT = Path(__file__).parents[2]
FINISH = ROOT / "images" / "finish.py"
PREFIX = "/opt/macroserve"
LATER_WIRE = Path(__file__).with_name("later_wire.py")

# pip writes the interpreter that runs it into the scripts it installs; the image's is another.
_PIP = f"""
import os, runpy, sys
os.umask(0o022)
sys.executable = "{PREFIX}/bin/python"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def write_locked(target: Path, scratch: Path, locks: Iterable[Path]) -> None:
    """Write the layer of the packages that locks name, and nothing else."""
    for lock in locks:
        # One at a time: pip wants hashes of all that it installs at once, or of nothing.
        _install(scratch, "--only-binary=:all:", "--requirement", str(lock))
    _finish(scratch, target)


def read_sources() -> dict[str, bytes]:
    """Return the sources of the project's wheel by their path in the checkout, in a fixed order."""
    files = [ROOT / name for name in ("LICENSE", "README.md", "pyproject.toml")]
    for folder in ("kernels", "operator", "serving"):
        found = (ROOT / folder).rglob("*")
        files += sorted(file for file in found if file.is_file() and file.suffix != ".pyc")
    return {str(file.relative_to(ROOT)): file.read_bytes() for file in files}


def write_project(target: Path, scratch: Path, sources: Mapping[str, bytes]) -> None:
    """Write the layer of the project itself, as a wheel of `sources`.

    They are written out again, so that a checkout edited meanwhile cannot slip in.
    """
    checkout, wheels, root = scratch / "checkout", scratch / "wheels", scratch / "root"
    for name, content in sources.items():
        file = checkout / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    _run(
        *("-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", str(wheels), str(checkout)),
    )
    _install(root, "--no-index", f"--find-links={wheels}", "macroserve")
    _finish(root, target)


def write_later_wire(target: Path, scratch: Path) -> None:
    """Write a layer by which every Python process of the image imports ``later_wire`` first."""
    folder = scratch / PREFIX.lstrip("/") / "lib" / "python3.11" / "site-packages"
    folder.mkdir(parents=True)
    (folder / LATER_WIRE.name).write_bytes(LATER_WIRE.read_bytes())
    (folder / "later_wire.pth").write_text(f"import {LATER_WIRE.stem}\n")
    _finish(scratch, target)


def _install(root: Path, *what: str) -> None:
    _run(
        *("-c", _PIP, "install", "-qq", "--no-deps", "--no-compile", "--ignore-installed"),
        *(f"--root={root}", f"--prefix={PREFIX}", *what),
    )


def _finish(root: Path, target: Path) -> None:
    _run(str(FINISH), str(root))
    write_layer(target, {"/": root})


def _run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True)
