"""Images without a container engine.

An image has three layers: a base, the locked packages, and the project. Only the last one changes
with each commit, so a node with an earlier image unpacks a few megabytes.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from cluster import places
from cluster.image_archive import write_image
from cluster.steps import Steps

from images import base, packages
from images.dockerfile import read_dockerfile
from images.names import dockerfile_of, image_name
from images.packages import ROOT
from images.store import Store, key_of, open_store

# Read at the start, so that the text is that of the running code.
_CODE = {module: Path(str(module.__file__)).read_bytes() for module in (base, packages)}


def build(component: str, version: str, later: bool = False) -> Path:
    """Build an image without a container engine; return its archive."""
    if sys.version_info[:2] != (3, 11):
        raise RuntimeError("images have Python 3.11 and are made with it, for its wheels")
    dockerfile = read_dockerfile(dockerfile_of(component), {"VERSION": version})
    named = [dockerfile.arguments.get(name) for name in ("REQUIREMENTS", "TORCH_REQUIREMENTS")]
    locks = [ROOT / "requirements" / lock for lock in named if lock]
    debian_packages = dockerfile.arguments.get("PACKAGES", "").split()
    name = image_name(component, later)
    sources = packages.read_sources()
    steps = Steps()
    with open_store(places.images()) as store:
        make = _Maker(store, steps)
        layers = [
            make(
                f"{component}-base",
                "Debian with Python",
                _recipe(base, *debian_packages),
                lambda target, scratch: base.write_base(target, scratch, debian_packages),
            ),
            make(
                f"{component}-packages",
                f"Packages of {' and '.join(lock.name for lock in locks)}",
                _recipe(
                    packages,
                    *(lock.read_bytes() for lock in locks),
                    packages.FINISH.read_bytes(),
                ),
                lambda target, scratch: packages.write_locked(target, scratch, locks),
            ),
            make(
                "project",
                "Macroserve",
                _recipe(packages, repr(sources), packages.FINISH.read_bytes()),
                lambda target, scratch: packages.write_project(target, scratch, sources),
            ),
        ]
        if later:
            layers.append(
                make(
                    "later-wire",
                    "Messages of a later version",
                    _recipe(packages, packages.LATER_WIRE.read_bytes()),
                    packages.write_later_wire,
                )
            )
        return make(
            f"{component}-later" if later else component,
            f"Archive of {name}",
            key_of(*(layer.name for layer in layers), repr(dockerfile.config)),
            lambda target, _: write_image(target, name, layers, dockerfile.config),
        )


class _Maker:
    """Files from the store, with progress messages for missing ones."""

    def __init__(self, store: Store, steps: Steps) -> None:
        self._store = store
        self._steps = steps

    def __call__(
        self, kind: str, step: str, key: str, build: Callable[[Path, Path], object]
    ) -> Path:
        def timed(target: Path, scratch: Path) -> None:
            with self._steps(step):
                build(target, scratch)

        return self._store.file(kind, key, timed)


def _recipe(module: ModuleType, *inputs: str | bytes) -> str:
    """Return a key of a layer, which includes the code that makes it."""
    return key_of(_CODE[module], *inputs)
