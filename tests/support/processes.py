"""Processes that a test started, found by their titles."""

import contextlib

import psutil


def descendants(pid: int, title: str) -> list[psutil.Process]:
    """Return the living processes below ``pid`` whose title contains ``title``.

    Zombies of earlier tests have no title.
    """
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if title in " ".join(process.cmdline()):
                found.append(process)
    return found
