"""An image's layers are unpacked whether they are compressed or not."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
from images.container import Container


def layer(name: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    return file.getvalue()


def archive(path: Path, *, compressed: bool) -> Path:
    """Write an OCI archive of one layer with one empty file."""
    content = layer("file")
    kind = "application/vnd.oci.image.layer.v1.tar"
    blobs = {"layer": gzip.compress(content) if compressed else content}
    blobs["config"] = json.dumps({"config": {"User": "1:1"}}).encode()
    of_layer = {"digest": "sha256:layer", "mediaType": kind + "+gzip" * compressed}
    manifest = {"config": {"digest": "sha256:config"}, "layers": [of_layer]}
    blobs["manifest"] = json.dumps(manifest).encode()
    index = json.dumps({"manifests": [{"digest": "sha256:manifest"}]}).encode()
    files = {"index.json": index, **{f"blobs/sha256/{name}": blobs[name] for name in blobs}}
    with tarfile.open(path, "w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_layer_compressed_or_not_is_unpacked(tmp_path: Path, compressed: bool) -> None:
    image = archive(tmp_path / "image.tar", compressed=compressed)
    container = Container(image, tmp_path / "container", Path("runc"))
    assert (container.root / "file").exists()
    assert container.config == {"User": "1:1"}
