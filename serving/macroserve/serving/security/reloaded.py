"""A value that is reloaded from files while a component runs."""

from collections.abc import Callable
from typing import Generic, TypeVar

from macroserve.api.logs import get_logger

RELOAD_S = 1.0

log = get_logger(__name__)

T = TypeVar("T")


class Reloaded(Generic[T]):
    """A value that is read again on use, at most every RELOAD_S, from few small files. Unusable
    files are logged once and leave the previous value.

    read: returns the value. Raises ValueError for unusable files, also at the start.
    name: name of the value in the log.
    """

    def __init__(self, read: Callable[[], T], name: str, clock: Callable[[], float]) -> None:
        self._read = read
        self._name = name
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
                log.error("credentials not reloaded", credentials=self._name, reason=str(error))
            return
        self._problem = ""
        if value != self._value:
            self._value = value
            log.warning("credentials reloaded", credentials=self._name)
