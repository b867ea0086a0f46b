"""An instance measures its start: how long it took, and whether the caches had what it needed."""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_START_TIME = 19
"""Place of ``starttime`` among the fields that follow the command in ``/proc/self/stat``."""


def process_age_s() -> float:
    """Return the time since this process began, seconds, with a resolution of a hundredth."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    began_s = int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)


class CacheWatch:
    """The watch remembers the entries of cache folders, to tell later whether a start added any.

    A checkpoint's files and the code of one configuration are one entry each, and what is written
    beside them, such as locks, is none. An instance that starts at the same time in the same
    folders counts as well: both then wait for what is fetched or compiled.
    """

    def __init__(self, folders: Iterable[Path], grown: bool = False) -> None:
        """Read the folders.

        folders: those that do not exist yet are empty.
        grown: whether an earlier step of the same start has added something.
        """
        self._folders = tuple(folders)
        self._grown = grown
        self._before = self._entries()

    @property
    def grown(self) -> bool:
        """Return whether the start has added an entry."""
        return self._grown or not self._entries() <= self._before

    def _entries(self) -> set[Path]:
        found: set[Path] = set()
        for folder in self._folders:
            with suppress(OSError):
                found.update(folder.iterdir())
        return found
