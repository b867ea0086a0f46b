"""Limit on the connections of a process, so that it never runs out of file descriptors: without
any, a server neither accepts connections nor reaches instances nor opens files."""

import functools
import resource

from macroserve.api.logs import get_logger

RESERVED = 512
"""Descriptors for everything except clients' connections, at most half of the limit: a frontend has
about 100 files open, and the private port takes up to 256 connections."""
PER_CONNECTION = 2
"""The client's connection and the one to its instance."""

log = get_logger(__name__)


@functools.cache
def affordable_connections(wanted: int) -> int:
    """Return ``wanted``, or the number that the process's raised limit allows; that is logged
    once."""
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
        # The kernel's maximum (fs.nr_open) may be lower than the hard limit.
        return soft
    return hard
