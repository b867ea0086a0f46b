"""Tiers of tests, each with the files that it depends on.

    python tests/tiers.py TIER COMMAND...

runs the command, unless it has passed on this machine within 30 days for the same content of those
files. A machine without a record runs it. Prints why a command is skipped.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]

PRODUCT = ("serving", "operator", "kernels")
CLUSTER = ("helm", "crds", "manifests", "testcluster", "e2e")

PACKAGES = ("api", "bench", "cli", "core", "local", "operator", "serving", "sim", "workload")
UNIT_TESTS = tuple(f"tests/{package}" for package in PACKAGES)

TIERS: dict[str, tuple[str, ...]] = {
    "simulations": (*PRODUCT, "lab/macroserve_lab", "manifests", *UNIT_TESTS),
    "engines": (
        *("serving", "kernels", "lab/macroserve_lab"),
        *("tests/engine", "tests/rehearsal", "tests/bench"),
    ),
    "deployments": (
        *("serving", "operator/macroserve/operator/apply", "kernels", "manifests"),
        *("lab/macroserve_lab", "testcluster/cluster"),
        *("e2e/world", "tests/deployment", "tests/local", "tests/cli"),
    ),
    "wheel": (*PRODUCT, "hatch_build.py", "manifests", "tests/project"),
    "api": (
        *(*PRODUCT, *CLUSTER),
        *("tests/operator", "tests/helm", "tests/e2e", "tests/rules"),
    ),
    "lab": (*PRODUCT, "manifests", "lab", "testcluster/cluster", "e2e/world"),
    "cluster": ("testcluster",),
    "nodes": (*PRODUCT, *CLUSTER, "images", ".dockerignore"),
}
"""Files and folders that the tests of a tier depend on, in addition to the shared ones."""

SHARED = (
    *("Makefile", "pyproject.toml", "lab/pyproject.toml", "requirements"),
    *("tests/conftest.py", "tests/support", "tests/tiers.py"),
)
"""Files that all tiers depend on."""

COVERED_BY_MAKE_TEST = (
    *("tests", "docs", "mkdocs.yml", ".github", ".gitignore", "LICENSE"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
)
"""Files that, unless a tier names them, matter to `make test` alone."""

VALID_FOR_S = 30 * 24 * 3600.0


def tracked(root: Path) -> list[str]:
    """Return the paths of all files of a checkout that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return sorted(name for name in set(listing.split("\0")) if name and (root / name).is_file())


def is_below(path: str, places: Iterable[str]) -> bool:
    """Return whether a path is one of some files or lies in one of some folders."""
    return any(path == place or path.startswith(f"{place}/") for place in places)


def files_of(tier: str, paths: Iterable[str]) -> list[str]:
    """Return the paths that a tier depends on: its own, the shared ones, and unknown ones, which
    may matter to any."""
    known = {*COVERED_BY_MAKE_TEST, *(place for places in TIERS.values() for place in places)}
    return [
        path for path in paths if is_below(path, TIERS[tier] + SHARED) or not is_below(path, known)
    ]


def digest(root: Path, paths: Iterable[str]) -> str:
    """Return a digest of the names and contents of files."""
    total = hashlib.sha256()
    for path in paths:
        content = (root / path).read_bytes()
        total.update(f"{path} {len(content)} ".encode() + content)
    return total.hexdigest()


def record_of(tier: str) -> Path:
    """Return the file that remembers when and for which content a tier passed."""
    base = os.environ.get("XDG_CACHE_HOME")
    cache = Path(base) if base else Path.home() / ".cache"
    return cache / "macroserve" / "tiers" / f"{tier}.json"


def reason_to_skip(record: Path, tested: str, now_s: float) -> str:
    """Return why the tests need not run; empty if they have to."""
    if not record.exists():
        return ""
    passed = json.loads(record.read_text())
    if passed["tested"] != tested or now_s - passed["at_s"] > VALID_FOR_S:
        return ""
    day = time.strftime("%Y-%m-%d", time.localtime(passed["at_s"]))
    return f"passed on {day} on this machine, and nothing that they depend on has changed since"


def run(command: list[str], record: Path, content: str) -> int:
    """Run a command unless it has passed for this content; return its exit code."""
    tested = f"{' '.join(command)} of {content}"
    if reason := reason_to_skip(record, tested, time.time()):
        print(f"Skipped {' '.join(command)}: its tests {reason} ({record}).", flush=True)
        return 0
    ended = subprocess.run(command)
    if ended.returncode == 0:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps({"tested": tested, "at_s": time.time()}))
    return ended.returncode


def main(tier: str, *command: str) -> int:
    content = digest(ROOT, files_of(tier, tracked(ROOT)))
    return run(list(command), record_of(tier), content)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
