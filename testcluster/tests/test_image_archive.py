"""Layers and archives of the same contents have the same bytes."""

import hashlib
import json
import os
import tarfile
from pathlib import Path

import pytest
from cluster.image_archive import ImageConfig, read_image, write_image, write_layer

CONFIG = ImageConfig(
    entrypoint=["/bin/app", "--fast"],
    command=["serve"],
    environment={"PATH": "/bin", "HOME": "/tmp"},
    user="65532",
    working_dir="/srv",
    labels={"org.opencontainers.image.title": "app"},
)


def make_tree(root: Path, names: list[str]) -> Path:
    root.mkdir()
    for name in names:
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"content of {name}")
        path.chmod(0o755 if name.startswith("bin/") else 0o640)
    (root / "link").symlink_to("bin/app")
    return root


def entries(layer: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(layer) as tar:
        return {member.name: member for member in tar.getmembers()}


def test_layer_depends_on_its_contents_alone(tmp_path: Path) -> None:
    names = ["bin/app", "lib/b", "lib/a"]
    first = make_tree(tmp_path / "first", names)
    second = make_tree(tmp_path / "second", names[::-1])
    os.utime(second / "lib/a", (1, 1))
    os.link(second / "lib/b", tmp_path / "another-name")
    for tree in (first, second):
        write_layer(tree.with_suffix(".tar"), {"/opt": tree})
    assert first.with_suffix(".tar").read_bytes() == second.with_suffix(".tar").read_bytes()


def test_layer_keeps_modes_and_links_and_belongs_to_root(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", ["bin/app", "lib/a"])
    (tree / "tmp").mkdir()
    (tree / "tmp").chmod(0o1777)
    layer = tmp_path / "layer.tar"
    write_layer(layer, {"/": tree, "/etc/passwd": b"me:x:65532:65532::/tmp:/bin/false\n"})
    found = entries(layer)
    assert list(found) == sorted(found)
    assert {member.mtime for member in found.values()} == {0}
    assert {(member.uid, member.gid, member.uname) for member in found.values()} == {(0, 0, "")}
    assert {name: (member.mode, member.type) for name, member in found.items()} == {
        "bin": (0o755, tarfile.DIRTYPE),
        "bin/app": (0o755, tarfile.REGTYPE),
        "etc": (0o755, tarfile.DIRTYPE),
        "etc/passwd": (0o644, tarfile.REGTYPE),
        "lib": (0o755, tarfile.DIRTYPE),
        "lib/a": (0o640, tarfile.REGTYPE),
        "link": (0o777, tarfile.SYMTYPE),
        "tmp": (0o1777, tarfile.DIRTYPE),
    }
    assert found["link"].linkname == "bin/app"


def test_layer_of_hard_links_has_a_file_for_each(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", ["lib/a"])
    os.link(tree / "lib/a", tree / "lib/b")
    layer = tmp_path / "layer.tar"
    write_layer(layer, {"/": tree})
    assert entries(layer)["lib/b"].size == len("content of lib/a")


def test_layer_leaves_excluded_folders_out_with_their_contents(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", ["lib/a", "__pycache__/a.pyc"])
    layer = tmp_path / "layer.tar"
    write_layer(layer, {"/opt": tree}, keep=lambda path: path.name != "__pycache__")
    assert list(entries(layer)) == ["opt", "opt/lib", "opt/lib/a", "opt/link"]


def test_layer_with_two_contents_at_one_path_has_the_later(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", ["lib/a"])
    layer = tmp_path / "layer.tar"
    write_layer(layer, {"/": tree, "/lib/a": b"new"})
    assert entries(layer)["lib/a"].size == 3


@pytest.mark.parametrize("path", ["lib/a", "/../lib", ""])
def test_layer_path_that_is_not_absolute_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="absolute"):
        write_layer(tmp_path / "layer.tar", {path: b""})
    assert list(tmp_path.iterdir()) == []


def test_layer_of_a_pipe_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="neither"):
        write_layer(tmp_path / "layer.tar", {"/pipe": pipe})
    assert list(tmp_path.iterdir()) == [pipe]


def test_image_archive_is_a_consistent_oci_layout(tmp_path: Path) -> None:
    layers = [tmp_path / "low.tar", tmp_path / "high.tar"]
    write_layer(layers[0], {"/a": b"a"})
    write_layer(layers[1], {"/b": b"b"})
    archive = tmp_path / "image.tar"
    image = write_image(archive, "registry.local/app:1", layers, CONFIG)

    with tarfile.open(archive) as tar:
        blobs = {
            member.name: file.read()
            for member in tar.getmembers()
            if (file := tar.extractfile(member))
        }
    assert json.loads(blobs.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(blobs.pop("index.json"))
    assert set(blobs) == {
        f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}" for blob in blobs.values()
    }

    def blob(descriptor: dict[str, str]) -> bytes:
        content = blobs[f"blobs/{descriptor['digest'].replace(':', '/')}"]
        assert descriptor["size"] == len(content)
        return content

    (listed,) = index["manifests"]
    assert listed["digest"] == image.digest
    manifest = json.loads(blob(listed))
    config = json.loads(blob(manifest["config"]))
    assert [blob(layer) for layer in manifest["layers"]] == [path.read_bytes() for path in layers]
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
    assert config["config"] == {
        "Entrypoint": ["/bin/app", "--fast"],
        "Cmd": ["serve"],
        "Env": ["PATH=/bin", "HOME=/tmp"],
        "User": "65532",
        "WorkingDir": "/srv",
        "Labels": {"org.opencontainers.image.title": "app"},
    }


def test_image_archive_when_read_gives_the_image(tmp_path: Path) -> None:
    layer, archive = tmp_path / "layer.tar", tmp_path / "image.tar"
    write_layer(layer, {"/a": b"a"})
    image = write_image(archive, "registry.local/app:1", [layer, layer], CONFIG)
    assert read_image(archive) == image


@pytest.mark.parametrize("name", ["app", "app:1", "macroserve/app:1", "registry.local/app"])
def test_image_name_without_host_or_tag_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="full image name"):
        write_image(tmp_path / "image.tar", name, [], CONFIG)
