"""The heap of a server's process: what it gives back, and what is collected."""

import ctypes
import gc

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


def freeze() -> None:
    """Keep the garbage collector off what a started server holds, as vLLM's own servers do: a
    collection that visits its million objects takes half a second, in which no token moves."""
    gc.collect()
    gc.freeze()
