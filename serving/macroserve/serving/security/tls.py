"""TLS between the components of a deployment, whose certificate is renewed while they run.

All components use the same certificate, for one name (``api.tls``). Callers verify that name, for
any address, with the deployment's own authority alone.
"""

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from macroserve.api.logs import get_logger
from macroserve.api.tls import AUTHORITY, CERTIFICATE, KEY, client_context
from macroserve.serving.security.reloaded import Reloaded

LOG_AGAIN_S = 60.0
MAX_LOGGED = 64

log = get_logger(__name__)


class TlsError(ValueError):
    """A folder without a usable certificate; the message is the end of a sentence."""


@dataclass(frozen=True, slots=True)
class TlsSource:
    """A source of certificates, as plain data that can be sent to another process."""

    folder: str
    """Folder with ``tls.crt``, ``tls.key`` and ``ca.crt``, in PEM."""
    name: str
    """Server name in the certificate."""

    def read(self) -> "Contexts":
        """Read the files. Raises TlsError."""
        folder = Path(self.folder)
        said = {name: _bytes(folder / name) for name in (CERTIFICATE, KEY, AUTHORITY)}
        server = _ServerContext(ssl.PROTOCOL_TLS_SERVER)
        server.minimum_version = ssl.TLSVersion.TLSv1_3
        client = client_context()
        try:
            server.load_cert_chain(folder / CERTIFICATE, folder / KEY, password="")
            client.load_verify_locations(folder / AUTHORITY)
        except (ssl.SSLError, OSError) as error:
            why = _reason(error).replace("_", " ").lower()
            raise TlsError(f"the certificate in {folder} cannot be used: {why}") from error
        return Contexts(said, server, client)


@dataclass(frozen=True, slots=True)
class Contexts:
    """TLS contexts, which are equal if their files are."""

    said: dict[str, bytes]
    """Contents of the files, by name."""
    server: ssl.SSLContext = field(compare=False)
    client: ssl.SSLContext = field(compare=False)


class LiveTls:
    """TLS contexts that use the current certificate for each connection. Raises TlsError when the
    files cannot be used at the start."""

    def __init__(self, source: TlsSource, clock: Callable[[], float] = time.monotonic) -> None:
        contexts = Reloaded(source.read, "certificate", clock)
        self.server: ssl.SSLContext = _LiveContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.opening = lambda: contexts.value.server
        self.client: ssl.SSLContext = _LiveContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client.opening = lambda: contexts.value.client
        self.client.name = source.name


class _LiveContext(ssl.SSLContext):
    """A context that delegates each connection to the current one."""

    opening: Callable[[], ssl.SSLContext]
    """Returns the current context."""
    name: str | None = None
    """Server name that a client verifies, whatever address it calls."""

    def wrap_bio(self, incoming, outgoing, server_side=False, server_hostname=None, session=None):
        return self.opening().wrap_bio(incoming, outgoing, server_side, self.name, session)


class _ServerSide(ssl.SSLObject):
    """A server's connection that logs failed handshakes, which asyncio does not."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError):
            raise  # not finished, or a caller that only checks whether the port is open
        except ssl.SSLError as error:
            log_failed_handshake("caller", error)
            raise


class _ServerContext(ssl.SSLContext):
    sslobject_class = _ServerSide


def log_failed_handshake(peer: str, error: ssl.SSLError | ssl.CertificateError) -> None:
    """Log a failed handshake; the same one at most once a minute, as peers retry."""
    failure = (peer, _cause(error))
    now = time.monotonic()
    if now - logged_at.get(failure, -LOG_AGAIN_S) >= LOG_AGAIN_S:
        if len(logged_at) >= MAX_LOGGED:
            logged_at.clear()
        logged_at[failure] = now
        log.error("TLS handshake failed", peer=peer, reason=failure[1])


logged_at: dict[tuple[str, str], float] = {}
"""Time of each failure's last log line, by peer and reason, on the monotonic clock."""

_CAUSES = {
    "HTTP_REQUEST": "peer speaks plain HTTP",
    "WRONG_VERSION_NUMBER": "peer does not speak TLS",
}


def _cause(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate rejected: {error.verify_message}"
    return _CAUSES.get(reason := _reason(error), reason.replace("_", " ").lower())


def _reason(error: OSError) -> str:
    """Return OpenSSL's reason, in capitals, or the operating system's."""
    return getattr(error, "reason", None) or error.strerror or str(error)


def base_url(tls: LiveTls | TlsSource | None, host: str, port: int) -> str:
    """Return the base URL of a server that listens with this TLS, or without."""
    return f"{'https' if tls else 'http'}://{host}:{port}"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"{path} cannot be read: {error.strerror}") from error
