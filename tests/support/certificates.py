"""Certificates of a deployment's components, in folders as mounted in pods."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from macroserve.api.tls import AUTHORITY, CERTIFICATE, KEY, tls_name
from macroserve.operator.apply.certificates import certificates
from macroserve.serving.security.tls import TlsSource

NAME = tls_name("default", "test")


def write(folder: Path, data: Mapping[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name in (CERTIFICATE, KEY, AUTHORITY):
        (folder / name).write_text(data[name])


def source(folder: Path, name: str = NAME, now: datetime | None = None) -> TlsSource:
    """Return a source in a folder with new certificates for a name, made at `now`."""
    write(folder, certificates({}, name, now or datetime.now(UTC)))
    return TlsSource(str(folder), name)
