"""An instance reports the duration of its start, and whether caches grew."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from macroserve.serving.instance.start import CacheWatch, process_age_s


def test_age_of_a_process_counts_from_its_begin() -> None:
    code = "from macroserve.serving.instance.start import process_age_s; print(process_age_s())"
    began_s = time.monotonic()
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    lasted_s = time.monotonic() - began_s
    # Python alone takes a hundredth, the resolution, to begin.
    assert 0 < float(printed) <= lasted_s + 0.02


def test_age_of_this_process_grows() -> None:
    first = process_age_s()
    assert first <= process_age_s()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "there").touch()
    return tmp_path


def test_caches_that_nothing_was_added_to_have_not_grown(folder: Path) -> None:
    watch = CacheWatch([folder, folder / "none"])
    (folder / "there").write_text("read again")
    assert not watch.grown


def test_caches_with_a_new_entry_have_grown(folder: Path) -> None:
    watch = CacheWatch([folder / "none", folder])
    (folder / "new").mkdir()
    assert watch.grown


def test_caches_that_did_not_exist_have_grown_with_their_first_entry(folder: Path) -> None:
    watch = CacheWatch([folder / "none"])
    (folder / "none").mkdir()
    assert not watch.grown
    (folder / "none" / "new").touch()
    assert watch.grown


def test_caches_from_which_an_entry_was_removed_have_not_grown(folder: Path) -> None:
    watch = CacheWatch([folder])
    (folder / "there").unlink()
    assert not watch.grown


def test_caches_that_an_earlier_step_has_added_to_have_grown(folder: Path) -> None:
    assert CacheWatch([folder], grown=True).grown
