"""API keys of the public endpoint, from a file, a mounted Secret or the environment.

Reading fails closed: if keys are required and none is found, the ingress does not start. A key
removed from the file stops working within seconds, without a restart. In a folder, a file named
like an SLO class has the keys of that class.
"""

import asyncio
import re
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from macroserve.api.auth import TokenCheck, bearer
from macroserve.api.logs import get_logger

RELOAD_S = 2.0
MAX_FILE_BYTES = 1 << 20
ENVIRONMENT = "MACROSERVE_API_KEYS"

_KEY = re.compile(r"[!-~]+")
_LINE = re.compile(r"(?P<key>[!-~]+)(\s+#.*)?")

log = get_logger(__name__)


class ApiKeysError(Exception):
    """API keys that cannot be used; the message is for users and contains no key."""


@dataclass(frozen=True, slots=True)
class ApiKeySource:
    """A source of API keys: ``path``, a file or folder (a mounted Secret), or the ``keys``."""

    path: Path | None = None
    keys: tuple[str, ...] = field(default=(), repr=False)

    def read(self) -> tuple[str, ...]:
        """Return at least one key. Raises ApiKeysError."""
        return tuple(key for keys in self.read_files().values() for key in keys)

    def read_files(self) -> dict[str, tuple[str, ...]]:
        """Return the keys, at least one, by file name; "" without a folder. Raises ApiKeysError."""
        if self.path is not None:
            return read_keys(self.path)
        if not self.keys:
            raise ApiKeysError("there is no API key")
        return {"": self.keys}


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A valid API key of a request."""

    slo_class: str | None
    """SLO class of the key; None if it has none."""


def environment_source(value: str) -> ApiKeySource:
    """Return the comma-separated keys in ``value``. Raises ApiKeysError."""
    keys = tuple(key for part in value.split(",") if (key := part.strip()))
    if not keys:
        raise ApiKeysError(f"{ENVIRONMENT} is set, but there is no API key in it")
    if not all(map(_KEY.fullmatch, keys)):
        raise ApiKeysError(f"a key in {ENVIRONMENT} is not one word of printable ASCII characters")
    return ApiKeySource(keys=keys)


def read_keys(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the keys of a file or of a folder's files, by name. Raises ApiKeysError for none."""
    try:
        files = _files(path)
        keys = {name: parse_keys(_content(file), str(file)) for name, file in files.items()}
    except OSError as error:
        raise ApiKeysError(
            f"the API keys in {path} cannot be read: {error.strerror or error}"
        ) from error
    if not any(keys.values()):
        raise ApiKeysError(f"there is no API key in {path}")
    return keys


def parse_keys(content: bytes, name: str) -> tuple[str, ...]:
    """Return the keys of one file, a line each, of printable ASCII characters without spaces.

    Blank lines and comments (``#`` at the start or after a space) are skipped. Raises ApiKeysError
    with ``name`` and the line number for anything else.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ApiKeysError(
            f"the API keys in {name} cannot be read: it is not UTF-8 text"
        ) from error
    keys: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:
            raise ApiKeysError(
                f"line {number} of {name} is not an API key: a key is one word of printable ASCII "
                "characters, and a comment starts with #"
            )
        keys.append(match["key"])
    return tuple(keys)


def _files(path: Path) -> dict[str, Path]:
    if not path.is_dir():
        return {"": path}
    # Kubernetes links the files of a Secret into folders that begin with two dots.
    return {f.name: f for f in sorted(path.iterdir()) if not f.name.startswith("..")}


def _content(file: Path) -> bytes:
    """Read a regular file; a pipe can be read only once, a device may never end."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise ApiKeysError(f"the API keys in {file} cannot be read: it is not a regular file")
    with file.open("rb") as stream:
        content = stream.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ApiKeysError(f"{file} is larger than {MAX_FILE_BYTES} bytes")
    return content


class LiveApiKeys:
    """The current API keys. Raises ApiKeysError if ``source`` has no key, or one key twice, with
    different SLO classes."""

    def __init__(self, source: ApiKeySource, slo_classes: Collection[str] = ()) -> None:
        self._source = source
        self._slo_classes = frozenset(slo_classes)
        self._take(source.read_files())
        self._problem = ""

    def find(self, headers: Mapping[str, str], takes_x_api_key: bool = False) -> KnownKey | None:
        """Return the valid key in a request's bearer token, or in ``x-api-key`` as Anthropic's
        clients send it; else None."""
        found = self._find(headers)
        if found is None and takes_x_api_key:
            found = self._find(bearer(headers.get("x-api-key", "")))
        return found

    def _find(self, headers: Mapping[str, str]) -> KnownKey | None:
        # All keys are compared, so that the time does not reveal which key matched.
        allowed = [known for known, check in self._checks.items() if check.allows(headers)]
        return allowed[0] if allowed else None

    def _take(self, files: dict[str, tuple[str, ...]]) -> None:
        classes: dict[str, str | None] = {}
        for name, keys in files.items():
            slo_class = name if name in self._slo_classes else None
            for key in keys:
                if classes.setdefault(key, slo_class) != slo_class:
                    raise ApiKeysError(f"a key in {name} is also in a file of another SLO class")
        of_class: dict[str | None, list[str]] = {}
        for key, slo_class in classes.items():
            of_class.setdefault(slo_class, []).append(key)
        self._files = files
        self._checks = {KnownKey(name): TokenCheck(keys) for name, keys in of_class.items()}

    async def follow(self) -> None:
        """Reload the keys every RELOAD_S until cancelled."""
        while self._source.path is not None:
            await asyncio.sleep(RELOAD_S)
            await self.reload()

    async def reload(self) -> None:
        """Read the keys again. An unusable file is logged once and leaves the previous keys."""
        try:
            files = await asyncio.to_thread(self._source.read_files)
            has_changed = files != self._files
            self._take(files)
        except ApiKeysError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("API keys not reloaded", reason=str(error))
            return
        self._problem = ""
        if has_changed:
            log.warning("API keys reloaded", num_keys=sum(map(len, files.values())))
