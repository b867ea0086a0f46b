"""Container images without a container engine or registry: tar layers in an OCI archive.

A layer is an uncompressed tar file that only depends on its contents: entries are sorted, belong to
root and have no time. The same contents have the same digest, so nodes do not unpack them again.
"""

import hashlib
import io
import json
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

Content = Path | bytes
"""Content of a path in an image: a file or directory on disk, or a small file's bytes."""

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True)
class ImageConfig:
    """The default command, environment and user of an image."""

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    working_dir: str = "/"
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Image:
    """An archive's image: its full name and its manifest's digest (`sha256:...`)."""

    name: str
    digest: str


def everything(_: Path) -> bool:
    return True


def write_layer(
    target: Path, contents: Mapping[str, Content], keep: Callable[[Path], bool] = everything
) -> None:
    """Write `contents` by their absolute paths in the image as a layer.

    Directories include everything below them for which `keep` is true of the path on disk (others
    are not entered). Parent directories are created (mode 755); modes and symbolic links are kept,
    hard links become separate files. For equal paths, the later content counts.

    Raises ValueError for a path that is not absolute and for a socket, device or pipe.
    """
    entries: dict[str, Content | None] = {}
    for path, content in contents.items():
        at = PurePosixPath(path)
        if not at.is_absolute() or ".." in at.parts:
            raise ValueError(f"{path} is no absolute path in an image")
        for parent in at.parents:
            entries.setdefault(_name(parent), None)
        entries.update((_name(at / below), found) for below, found in _walk(content, keep))
    entries.pop("", None)  # the root itself
    with _replacing(target) as partial, tarfile.open(partial, "w") as tar:
        for name in sorted(entries):
            _add(tar, name, entries[name])


def write_image(target: Path, name: str, layers: Sequence[Path], config: ImageConfig) -> Image:
    """Write an OCI archive of `layers` (tar files, lowest first) under a full `name`, with a
    registry's host and a tag (`registry.local/pause:1`): the kubelet adds both to shorter names.
    """
    host, slash, rest = name.partition("/")
    if not slash or "." not in host or ":" not in rest:
        raise ValueError(f"{name} is no full image name, such as registry.local/pause:1")
    digests = [_digest_of_file(layer) for layer in layers]
    config_blob = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Entrypoint": list(config.entrypoint),
                "Cmd": list(config.command),
                "Env": [f"{key}={value}" for key, value in config.environment.items()],
                "User": config.user,
                "WorkingDir": config.working_dir,
                "Labels": dict(config.labels),
            },
            "rootfs": {"type": "layers", "diff_ids": digests},
        }
    )
    manifest_blob = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, _digest(config_blob), len(config_blob)),
            "layers": [
                _descriptor(_LAYER, digest, layer.stat().st_size)
                for layer, digest in zip(layers, digests, strict=True)
            ],
        }
    )
    image = Image(name, _digest(manifest_blob))
    manifest = _descriptor(_MANIFEST, image.digest, len(manifest_blob))
    annotations = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": rest.rpartition(":")[2],
    }
    index = {"schemaVersion": 2, "manifests": [manifest | {"annotations": annotations}]}
    with _replacing(target) as partial, tarfile.open(partial, "w") as tar:
        _add(tar, "index.json", _json(index))  # first, as `read_image` expects
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        for blob in (manifest_blob, config_blob):
            _add(tar, _blob(_digest(blob)), blob)
        for digest, layer in dict(zip(digests, layers, strict=True)).items():
            _add(tar, _blob(digest), layer)
    return image


def read_image(archive: Path) -> Image:
    """Return the image in an archive of `write_image`."""
    with tarfile.open(archive) as tar:
        index = tar.extractfile("index.json")
        assert index is not None, "index.json is a file"
        (manifest,) = json.load(index)["manifests"]
    return Image(manifest["annotations"]["io.containerd.image.name"], manifest["digest"])


def _walk(
    content: Content, keep: Callable[[Path], bool]
) -> Iterator[tuple[PurePosixPath, Content]]:
    """Yield `content` and everything below it, each with its relative path."""
    yield PurePosixPath(), content
    if isinstance(content, Path) and content.is_dir() and not content.is_symlink():
        for child in filter(keep, content.iterdir()):
            for below, found in _walk(child, keep):
                yield child.name / below, found


def _add(tar: tarfile.TarFile, name: str, content: Content | None) -> None:
    """Add one entry with root as its owner and no time; None means a directory."""
    entry = tarfile.TarInfo(name)
    if content is None:
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)
        return
    if isinstance(content, bytes):
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
        return
    status = content.lstat()
    entry.mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode):
        entry.size = status.st_size
        with content.open("rb") as file:
            tar.addfile(entry, file)
        return
    if stat.S_ISLNK(status.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, str(content.readlink())
    elif stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
    else:
        raise ValueError(f"{content} is neither a file, a directory nor a symbolic link")
    tar.addfile(entry)


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yield a path to write to, which replaces `target` at the end."""
    partial = target.with_name(target.name + ".partial")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _name(path: PurePosixPath) -> str:
    return str(path).lstrip("/")


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _descriptor(media_type: str, digest: str, size_bytes: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest, "size": size_bytes}


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
