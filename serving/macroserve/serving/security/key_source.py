"""Read a part's keys (``api.keys``) and its certificate, and follow their changes.

Kubernetes mounts both as files, which change while the part runs: it uses the new content within
seconds, without a restart.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from macroserve.api.keys import KeyRing, KeysError, Purpose, parse_keys
from macroserve.serving.logs import get_logger
from macroserve.serving.security.tls import LiveTls, TlsSource

RELOAD_S = 1.0
SECRET = "secret"

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KeySource:
    """Plain data, so that it can go to another process."""

    purposes: tuple[Purpose, ...]
    """Purposes of the keys that are needed."""
    folder: str | None = None
    """Folder with a file for each purpose, or one named ``secret`` that the keys follow from; a
    key a line, the newest first."""
    secret: str = field(default="", repr=False)
    """Secret instead of a folder."""
    tls: TlsSource | None = None
    """None for plain HTTP."""

    def read(self) -> KeyRing:
        """Read the keys. Raises KeysError with a sentence's end that names the file."""
        if self.folder is None:
            return KeyRing.derived([self.secret], self.purposes)
        folder = Path(self.folder)
        if (folder / SECRET).exists():
            return KeyRing.derived(_keys(folder / SECRET), self.purposes)
        if missing := [p for p in self.purposes if not (folder / p).exists()]:
            raise KeysError(f"the folder {folder} has neither {SECRET} nor {', '.join(missing)}")
        return KeyRing({purpose: _keys(folder / purpose) for purpose in self.purposes})


def _keys(path: Path) -> tuple[str, ...]:
    try:
        return parse_keys(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not text"
        raise KeysError(f"the keys in {path} cannot be read: {why}") from error
    except KeysError as error:
        raise KeysError(f"the keys in {path} cannot be used: {error}") from error


class LiveKeys:
    """LiveKeys has the keys that hold now, and the TLS to listen and call with. Raises KeysError
    and TlsError when there are none at the start.

    Files are looked at again when a key is used, at most every RELOAD_S: they are few, small and in
    memory. Files that have become unusable are told once, and the former keys go on holding.
    """

    def __init__(self, source: KeySource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._ring = source.read()
        self.tls = LiveTls(source.tls, clock) if source.tls else None
        self._read_at_s = clock()
        self._problem = ""

    @property
    def ring(self) -> KeyRing:
        now = self._clock()
        if self._source.folder is not None and now - self._read_at_s >= RELOAD_S:
            self._read_at_s = now
            self._reload()
        return self._ring

    def _reload(self) -> None:
        try:
            ring = self._source.read()
        except KeysError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("The former keys go on holding: %s", error)
            return
        self._problem = ""
        if ring != self._ring:
            self._ring = ring
            log.warning("The keys between the parts of the deployment have changed")
