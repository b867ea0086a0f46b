"""Finished files outside the checkout, by a key of all their inputs."""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_KEPT = 2  # files of a kind: for this checkout and for another one

_KEY_LENGTH = 16
_ANY_KEY = "[0-9a-f]" * _KEY_LENGTH


def key_of(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        blob = part.encode() if isinstance(part, str) else part
        digest.update(len(blob).to_bytes(8, "big") + blob)
    return digest.hexdigest()[:_KEY_LENGTH]


class Store:
    """A store, to be opened by `open_store`, which admits one process at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._scratch = folder / "scratch"
        shutil.rmtree(self._scratch, ignore_errors=True)  # left by a process that was killed

    def file(self, kind: str, key: str, build: Callable[[Path, Path], None]) -> Path:
        """Return the file of this kind and key; if missing, `build(target, scratch)` makes it, with
        an empty folder `scratch`. Only the latest files of a kind are kept."""
        path = self._folder / f"{kind}-{key}.tar"
        if not path.exists():
            self._scratch.mkdir()
            try:
                build(path, self._scratch)
            finally:
                shutil.rmtree(self._scratch)
        now_ns = time.time_ns()  # finer than the clock by which the kernel dates files
        os.utime(path, ns=(now_ns, now_ns))
        self._forget_old(kind)
        return path

    def _forget_old(self, kind: str) -> None:
        files = self._folder.glob(f"{kind}-{_ANY_KEY}.tar")
        by_age = sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True)
        for old in by_age[_KEPT:]:
            old.unlink()


@contextmanager
def open_store(folder: Path) -> Iterator[Store]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Store(folder)
