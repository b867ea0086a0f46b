"""Measurement of an instance's start: its duration, and whether the caches were warm."""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_START_TIME = 19
"""Index of ``starttime`` among the fields after the command in ``/proc/self/stat``."""


def process_age_s() -> float:
    """Return the age of this process, seconds, in steps of a hundredth."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    began_s = int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)


class CacheWatch:
    """Entries of cache folders before a start, which show later whether the start added any.

    A checkpoint and the compiled code of one configuration are one entry each; locks and the like
    are none. Entries of another instance that starts at the same time also count: both wait for the
    download or the compiler.
    """

    def __init__(self, folders: Iterable[Path], grown: bool = False) -> None:
        """Read the folders, of which some may not exist.

        grown: whether an earlier step of the same start has added an entry.
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
