"""Files are made once per key, completely or not at all, by one process at a time."""

import subprocess
import sys
from pathlib import Path

import pytest
from images.store import Store, key_of, open_store


def writing(text: str):
    def build(target: Path, scratch: Path) -> None:
        assert list(scratch.iterdir()) == []
        (scratch / "left over").write_text("")
        target.write_text(text)

    return build


def refusing(target: Path, scratch: Path) -> None:
    raise AssertionError("made again")


def test_store_makes_a_file_once_per_key(tmp_path: Path) -> None:
    key, other = key_of("lock"), key_of("another lock")
    with open_store(tmp_path / "new") as store:
        first = store.file("layer", key, writing("one"))
        assert store.file("layer", key, refusing) == first
        second = store.file("layer", other, writing("two"))
    with open_store(tmp_path / "new") as store:
        assert store.file("layer", key, refusing).read_text() == "one"
        assert store.file("layer", other, refusing).read_text() == "two"
    assert first != second


def test_store_after_a_failed_build_has_no_file_and_no_scratch(tmp_path: Path) -> None:
    def failing(target: Path, scratch: Path) -> None:
        (scratch / "half").write_text("")
        raise RuntimeError("no disk")

    with open_store(tmp_path) as store:
        with pytest.raises(RuntimeError, match="no disk"):
            store.file("layer", key_of("a"), failing)
        assert store.file("layer", key_of("a"), writing("one")).read_text() == "one"


def test_store_removes_the_scratch_of_a_killed_process(tmp_path: Path) -> None:
    (tmp_path / "scratch" / "deep").mkdir(parents=True)
    with open_store(tmp_path) as store:
        store.file("layer", key_of("a"), writing("one"))
    assert not (tmp_path / "scratch").exists()


def test_store_keeps_the_two_latest_of_a_kind(tmp_path: Path) -> None:
    store = Store(tmp_path)
    a, b, c = (key_of(name) for name in "abc")
    other = store.file("layer-of-others", a, writing("other"))
    image = store.file("lay", a, writing("image"))
    first = store.file("layer", a, writing("a"))
    second = store.file("layer", b, writing("b"))
    assert store.file("layer", a, refusing) == first  # used again, so `second` is the older one
    third = store.file("layer", c, writing("c"))
    assert first.exists()
    assert not second.exists()
    assert third.exists()
    assert other.exists()
    assert image.exists()


def test_store_is_open_in_one_process_at_a_time(tmp_path: Path) -> None:
    waiting = (
        "import sys; from pathlib import Path; from images.store import open_store\n"
        "with open_store(Path(sys.argv[1])): pass"
    )
    with open_store(tmp_path):
        process = subprocess.Popen(
            [sys.executable, "-c", waiting, str(tmp_path)], env={"PYTHONPATH": ":".join(sys.path)}
        )
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2)
    assert process.wait(timeout=20) == 0


def test_key_of_different_parts_differs() -> None:
    assert key_of("ab", "c") != key_of("a", "bc")
    assert key_of("a", "b") != key_of("b", "a")
    assert key_of("a") == key_of(b"a")
