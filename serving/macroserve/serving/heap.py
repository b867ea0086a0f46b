"""Settings of a server process's heap and garbage collector."""

import ctypes
import gc

M_MMAP_THRESHOLD = -3
MAPPED_BYTES = 1 << 18
"""Large enough that usual requests stay on the heap, which costs no system call."""


def return_large_blocks() -> None:
    """Make glibc return every freed block of MAPPED_BYTES or more to the system.

    By default glibc raises this threshold to the largest block freed so far, at most 32 MiB: after
    one body of 8 MiB, all others are on the heap, which one small block behind them keeps from
    shrinking. Other C libraries have no such call.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def freeze() -> None:
    """Exclude the objects of a started server from garbage collection, as vLLM's servers do:
    visiting a million objects delays all tokens by half a second."""
    gc.collect()
    gc.freeze()
