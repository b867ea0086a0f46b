"""Read a value again from files that change while a part runs."""

from collections.abc import Callable
from typing import Generic, TypeVar

from macroserve.serving.logs import get_logger

RELOAD_S = 1.0

log = get_logger(__name__)

T = TypeVar("T")


class Reloaded(Generic[T]):
    """The value is read again when it is used, at most every RELOAD_S: its files are few, small and
    in memory. Files that have become unusable are logged once, and the former value stays in use.

    read: returns the value. Raises ValueError for unusable files, also at the start.
    kept: beginning of the sentence that logs that the former value stays.
    changed: sentence that logs a new value.
    """

    def __init__(
        self, read: Callable[[], T], kept: str, changed: str, clock: Callable[[], float]
    ) -> None:
        self._read = read
        self._kept = kept
        self._changed = changed
        self._clock = clock
        self._value = read()
        self._read_at_s = clock()
        self._problem = ""

    @property
    def value(self) -> T:
        now = self._clock()
        if now - self._read_at_s >= RELOAD_S:
            self._read_at_s = now
            self._reload()
        return self._value

    def _reload(self) -> None:
        try:
            value = self._read()
        except ValueError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("%s: %s", self._kept, error)
            return
        self._problem = ""
        if value != self._value:
            self._value = value
            log.warning("%s", self._changed)
