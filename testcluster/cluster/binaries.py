"""The built binaries, shared by all clusters of a machine."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import places, recipes
from cluster.errors import ClusterError
from cluster.steps import Steps

_STAMP = "built.json"
_VERSIONS = "versions.json"


def find() -> Path:
    """Return the folder of the binaries: KUBERNETES_BINARIES (a release, only for the API tier), or
    the built one. Raise ClusterError if they are not built."""
    if given := os.environ.get("KUBERNETES_BINARIES"):
        return Path(given)
    folder = places.binaries()
    if not _is_current(folder):
        raise ClusterError(f"no binaries in {folder}: run `make cluster-build` (once, 7 minutes)")
    return folder


def versions() -> dict[str, str]:
    """Return the versions of the binaries by name. Raise ClusterError if they are not built."""
    return json.loads((find() / _STAMP).read_text())["versions"]


def build(steps: Steps) -> Path:
    """Build the parts that are missing or whose recipe has changed. An interrupted build keeps the
    finished parts and the previous binaries."""
    target = places.binaries()
    parts = places.parts()
    parts.mkdir(parents=True, exist_ok=True)
    with _only_one(places.cache() / "build.lock"):
        if not _is_current(target):
            built = [_build_part(recipe, parts, steps) for recipe in recipes.RECIPES]
            _join(built, target)
            for part in set(parts.iterdir()) - set(built):
                shutil.rmtree(part)
    return target


def _build_part(recipe: recipes.Recipe, parts: Path, steps: Steps) -> Path:
    part = parts / f"{recipe.name}-{recipe.digest}"
    if not part.exists():
        with (
            steps(recipe.title),
            tempfile.TemporaryDirectory(dir=places.cache(), prefix="build-") as scratch,
        ):
            work, made = Path(scratch) / "work", Path(scratch) / "made"
            work.mkdir()
            made.mkdir()
            found = recipe.make(work, made)
            (made / _VERSIONS).write_text(json.dumps(found))
            made.rename(part)
    return part


def _join(parts: list[Path], target: Path) -> None:
    """Make `target` the folder of all parts' binaries."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        joined = Path(scratch) / "bin"
        found: dict[str, str] = {}
        for part in parts:
            found |= json.loads((part / _VERSIONS).read_text())
            shutil.copytree(part, joined, copy_function=os.link, dirs_exist_ok=True,
                            ignore=shutil.ignore_patterns(_VERSIONS))  # fmt: skip
        stamp = {"parts": _wanted(), "versions": found}
        (joined / _STAMP).write_text(json.dumps(stamp, indent=2))
        shutil.rmtree(target, ignore_errors=True)
        joined.rename(target)


def _is_current(folder: Path) -> bool:
    stamp = folder / _STAMP
    return stamp.exists() and json.loads(stamp.read_text()).get("parts") == _wanted()


def _wanted() -> dict[str, str]:
    return {recipe.name: recipe.digest for recipe in recipes.RECIPES}


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
