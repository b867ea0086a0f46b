"""Progress messages with the duration of each step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


class Steps:
    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(quiet=quiet, highlight=False)
        self._began = time.monotonic()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        with self._console.status(name):
            yield
        self._console.print(f"{time.monotonic() - began:7.2f} s  {name}")

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began
