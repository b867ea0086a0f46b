"""Names that an option accepts: listed in its help, completed by the shell, checked."""

from collections.abc import Iterable
from typing import TypeVar

import typer

from macroserve.core.accelerators import PEAKS

T = TypeVar("T", str, list[str] | None)


class Choices:
    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)

    def __str__(self) -> str:
        """Return the names as a help text lists them."""
        return ", ".join(self._names)

    def complete(self, incomplete: str) -> list[str]:
        """Return the names that begin with ``incomplete``, for ``autocompletion``."""
        return [name for name in self._names if name.startswith(incomplete)]

    def check(self, given: T) -> T:
        """Return the given names, for ``callback``. Raises BadParameter for unknown ones."""
        for name in [given] if isinstance(given, str) else given or ():
            if name not in self._names:
                raise typer.BadParameter(f"{name!r} is not one of {self}.")
        return given


DEVICES = Choices(PEAKS)
"""Devices that can be simulated and rehearsed."""
