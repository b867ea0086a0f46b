"""Changes of a manifest by all ways of saving files."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from macroserve.api.manifest import ManifestError
from macroserve.local.manifest_file import Saved, read, saves


def _in_place(path: Path, text: str) -> None:
    path.write_text(text)


def _by_rename(path: Path, text: str) -> None:
    other = path.with_suffix(".tmp")
    other.write_text(text)
    other.replace(path)


def _by_folder(path: Path, text: str) -> None:
    path.parent.rename(path.parent.with_name(f"old-{text}"))
    path.parent.mkdir()
    path.write_text(text)


def _by_links(path: Path, text: str) -> None:
    """Save as Kubernetes changes a ConfigMap: path -> ..data/m.yaml, ..data -> ..<time>."""
    version = path.parent / f"..{text}"
    version.mkdir()
    (version / path.name).write_text(text)
    link = path.parent / "..data_tmp"
    link.symlink_to(version.name)
    link.replace(path.parent / "..data")
    if not path.is_symlink():
        path.unlink(missing_ok=True)
        path.symlink_to(f"..data/{path.name}")


@pytest.mark.parametrize("save", [_in_place, _by_rename, _by_folder, _by_links])
async def test_manifest_watch_yields_every_save(
    tmp_path: Path, save: Callable[[Path, str], None]
) -> None:
    path = tmp_path / "folder" / "m.yaml"
    path.parent.mkdir()
    path.write_text("0")
    seen = saves(path, read(path), poll_s=0.005)
    async with asyncio.timeout(20):
        for text in ("1", "2", "3"):
            pending = asyncio.ensure_future(anext(seen))
            save(path, text)
            found = await pending
            while isinstance(found, ManifestError):  # between two steps of the save
                found = await anext(seen)
            assert found.text == text


async def test_file_that_vanishes_and_comes_back_is_two_saves(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("same")
    seen = saves(path, read(path), poll_s=0.005)
    async with asyncio.timeout(20):
        path.unlink()
        assert "No such file" in str(await anext(seen))
        path.write_text("same")
        assert isinstance(await anext(seen), Saved)


async def test_save_of_the_same_text_counts_and_no_save_does_not(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("same")
    seen = saves(path, read(path), poll_s=0.005)
    pending = asyncio.ensure_future(anext(seen))
    _, waiting = await asyncio.wait([pending], timeout=0.1)
    assert waiting
    os.utime(path, ns=(1, 1))
    async with asyncio.timeout(20):
        assert isinstance(await pending, Saved)
