"""The two images of every node: `pause`, for a pod's sandbox, and `busybox`."""

import subprocess
import tempfile
from pathlib import Path

from cluster.image_archive import ImageConfig, write_image, write_layer

PAUSE = "registry.local/pause:1"
BUSYBOX = "registry.local/busybox:1"


def build(binaries: Path, folder: Path) -> list[Path]:
    """Write both archives into `folder`; equal binaries make equal archives."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        return [
            _pause(binaries / "pause", folder, Path(scratch)),
            _busybox(binaries / "busybox", folder, Path(scratch)),
        ]


def _pause(program: Path, folder: Path, scratch: Path) -> Path:
    layer, archive = scratch / "pause.tar", folder / "pause.tar"
    write_layer(layer, {"/pause": program})
    write_image(archive, PAUSE, [layer], ImageConfig(entrypoint=["/pause"]))
    return archive


def _busybox(program: Path, folder: Path, scratch: Path) -> Path:
    layer, archive, applets = scratch / "busybox.tar", folder / "busybox.tar", scratch / "bin"
    applets.mkdir()
    listed = subprocess.run([program, "--list"], check=True, capture_output=True, text=True)
    for applet in set(listed.stdout.split()) - {"busybox"}:
        (applets / applet).symlink_to("busybox")
    write_layer(layer, {"/bin": applets, "/bin/busybox": program})
    config = ImageConfig(command=["sh"], environment={"PATH": "/bin"})
    write_image(archive, BUSYBOX, [layer], config)
    return archive
