"""Waiting for conditions of a cluster, with time limits."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    condition: Callable[[], T],
    timeout_s: float,
    *,
    describe: Callable[[], object] | None = None,
    every_s: float = 0.2,
) -> T:
    """Return the condition's first true value; the error includes the result of ``describe``."""
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        if value := condition():
            return value
        time.sleep(every_s)
    state = f":\n{describe()}" if describe else ""
    raise AssertionError(f"not so within {timeout_s:.0f} s{state}")


def throughout(
    condition: Callable[[], bool],
    duration_s: float,
    *,
    describe: Callable[[], object],
    every_s: float,
) -> None:
    """Check repeatedly that the condition holds for ``duration_s``; the error includes the result
    of ``describe``."""
    end = time.monotonic() + duration_s
    while time.monotonic() < end:
        assert condition(), describe()
        time.sleep(every_s)
