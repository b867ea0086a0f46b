"""A component's keys (``api.keys``) and TLS, reloaded from mounted files within seconds."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from macroserve.api.keys import KeyRing, KeysError, Purpose, parse_keys
from macroserve.serving.security.reloaded import Reloaded
from macroserve.serving.security.tls import LiveTls, TlsSource

SECRET = "secret"


@dataclass(frozen=True, slots=True)
class KeySource:
    """A source of keys, as plain data that can be sent to another process."""

    purposes: tuple[Purpose, ...]
    """Purposes of the needed keys."""
    folder: str | None = None
    """Folder with a file for each purpose, or ``secret`` from which all keys are derived; one key a
    line, the newest first."""
    secret: str = field(default="", repr=False)
    """Secret to use instead of a folder."""
    tls: TlsSource | None = None
    """None for plain HTTP."""

    def read(self) -> KeyRing:
        """Read the keys. Raises KeysError with the file, as the end of a sentence."""
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
    """The current keys and TLS contexts. Raises KeysError or TlsError without any at the start."""

    def __init__(self, source: KeySource, clock: Callable[[], float] = time.monotonic) -> None:
        self._ring = Reloaded(source.read, "keys", clock)
        self.tls = LiveTls(source.tls, clock) if source.tls else None

    @property
    def ring(self) -> KeyRing:
        return self._ring.value
