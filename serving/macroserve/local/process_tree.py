"""All descendants of this process, even those whose parents have ended (Linux only).

Ray's processes start others. If one is killed, its children are given to the nearest ancestor that
adopts orphans: this process, after ``adopt_orphans``.
"""

import ctypes
import os
import signal
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
END_TIMEOUT_S = 5.0
"""Time to wait for descendants, seconds: a process that hangs in a driver cannot end earlier."""


def adopt_orphans() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> dict[int, str]:
    """Return all descendants by ID, with their state from ``/proc/PID/stat``; ``Z`` has ended."""
    children: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                # The name before the last parenthesis may contain spaces and parentheses.
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                children[int(parent)].append((int(folder.name), state))
    found: dict[int, str] = {}
    parents = [os.getpid()]
    while parents:
        below = children[parents.pop()]
        found |= dict(below)
        parents += [pid for pid, _ in below]
    return found


def end_descendants() -> set[int]:
    """Kill all descendants, including new ones; return those that do not end."""
    give_up = time.monotonic() + END_TIMEOUT_S
    while alive := {pid for pid, state in descendants().items() if state != "Z"}:
        if time.monotonic() > give_up:
            break
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    reap_orphans()
    return alive


def reap_orphans(keep: int | None = None) -> None:
    """Reap children that have ended.

    keep: ID of the child that other code waits for.
    """
    if not _any_ended():
        return
    for pid, state in descendants().items():
        if state == "Z" and pid != keep:
            with suppress(ChildProcessError):  # not ours, but its own parent's
                os.waitpid(pid, os.WNOHANG)


def _any_ended() -> bool:
    """Return whether a child has ended, without reading all processes of the machine."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # there is no child
        return False
