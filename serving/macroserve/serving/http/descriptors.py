"""Limit the connections of a process to those that it has file descriptors for.

A server that runs out of descriptors accepts nothing, reaches no instance and opens no file, and
says "Too many open files" of all of these. So connections end before descriptors do.
"""

import functools
import resource

from macroserve.api.logs import get_logger

RESERVED = 512
"""For all that is no connection of a client: a frontend with its libraries has about 100 open, and
the private port takes up to 256 connections. At most half of the limit."""
PER_CONNECTION = 2
"""A client's own one, and that to the instance from which it is served."""

log = get_logger(__name__)


@functools.cache
def affordable_connections(wanted: int) -> int:
    """Return ``wanted``, or what the process's limit allows once it is as high as it may be.

    A lower number is logged once.
    """
    limit = _raised_limit()
    if limit == resource.RLIM_INFINITY:
        return wanted
    left = limit - min(RESERVED, limit // 2)
    affordable = max(1, left // PER_CONNECTION)
    if affordable >= wanted:
        return wanted
    log.warning(
        "connection limit lowered", connections=affordable, wanted=wanted, max_open_files=limit
    )
    return affordable


def _raised_limit() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        # The kernel's own maximum (fs.nr_open) may be lower than the hard limit.
        return soft
    return hard
