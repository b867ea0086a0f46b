"""Return freed memory to the system in a process that takes large bodies."""

import ctypes

M_MMAP_THRESHOLD = -3
MAPPED_BYTES = 1 << 18
"""Large enough that usual requests stay on the heap, whose blocks cost no system call."""


def return_large_blocks() -> None:
    """Have glibc give every freed block of MAPPED_BYTES or more back to the system.

    By default it does so up to the size of the largest block freed so far, 32 MiB at most: after
    one body of 8 MiB, all others come from the heap, where one small block behind them keeps them.
    Other C libraries have no such call.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
