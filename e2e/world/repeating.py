"""Concurrent repeated changes during a test."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from threading import Event


@contextmanager
def repeating(change: Callable[[int], None]) -> Iterator[None]:
    """Call ``change`` with 1, 2, 3 and so on in another thread, until left. Raises the exception of
    a call."""
    over = Event()

    def repeat() -> None:
        for number in count(1):
            change(number)
            if over.is_set():
                return

    with ThreadPoolExecutor(1) as thread:
        calls = thread.submit(repeat)
        try:
            yield
        finally:
            over.set()
    calls.result()
