"""Images built by Docker from the Dockerfiles, as by users."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from cluster import places

from images.names import dockerfile_of, image_name
from images.packages import LATER_WIRE, PREFIX, ROOT
from images.store import key_of, open_store

_ANSWER_S = 10.0
_SITE_PACKAGES = f"{PREFIX}/lib/python3.11/site-packages/"


def answers() -> bool:
    """Return whether docker is installed and its daemon answers."""
    if shutil.which("docker") is None:
        return False
    try:
        ended = subprocess.run(["docker", "info"], capture_output=True, timeout=_ANSWER_S)
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


def build(component: str, version: str, later: bool = False) -> Path:
    """Build an image, which Docker keeps under its name; return its archive."""
    name = image_name(component)
    dockerfile = str(dockerfile_of(component))
    _docker("build", "-f", dockerfile, "-t", name, "--build-arg", f"VERSION={version}", str(ROOT))
    if later:
        name = _add_later_wire(component)
    image = _docker("image", "inspect", "--format={{.Id}}", name).strip()
    kind = f"docker-{component}{'-later' if later else ''}"
    with open_store(places.images()) as store:
        return store.file(
            kind, key_of(image), lambda target, _: _docker("save", "-o", str(target), name)
        )


def _add_later_wire(component: str) -> str:
    """Build the image whose Python processes import ``later_wire`` first; return its name."""
    name = image_name(component, later=True)
    with tempfile.TemporaryDirectory() as scratch:
        context = Path(scratch)
        shutil.copy(LATER_WIRE, context)
        (context / "later_wire.pth").write_text(f"import {LATER_WIRE.stem}\n")
        (context / "Dockerfile").write_text(
            f"FROM {image_name(component)}\nCOPY later_wire.* {_SITE_PACKAGES}\n"
        )
        _docker("build", "-t", name, scratch)
    return name


def _docker(*arguments: str) -> str:
    """Run docker and return its output; its progress is printed to stderr."""
    ended = subprocess.run(
        ["docker", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        # An archive with one manifest, without an index and attestations.
        env=os.environ | {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"},
    )
    return ended.stdout
