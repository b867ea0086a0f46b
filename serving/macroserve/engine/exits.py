"""Processes and threads: their names, and their ends in words."""

import ctypes
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1


def ended(code: int) -> str:
    """Return ``was killed (SIGKILL)`` for a negative code or ``ended with exit code 3``."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed ({name})"


def num_oom_kills() -> int:
    """Return the number of out-of-memory kills so far in this control group, or on the whole
    machine if the group does not count them."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        group = next(line[3:] for line in lines if line.startswith("0::"))
        return _count(Path(f"/sys/fs/cgroup{group}/memory.events"))
    with suppress(OSError):
        return _count(Path("/proc/vmstat"))
    return 0


def _count(path: Path) -> int:
    counts = dict(line.split() for line in path.read_text().splitlines())
    return int(counts.get("oom_kill", 0))


def name_thread(name: str) -> None:
    """Show this thread under a name in the kernel's tools (only on Linux)."""
    with suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends (only on Linux)."""
    if sys.platform == "linux" and os.getppid() > 1:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
