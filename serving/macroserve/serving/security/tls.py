"""TLS between the parts of a deployment, whose certificate is renewed while they run.

All parts show the same certificate, for one name (``api.tls``). A caller wants that name
from whatever is at an address, proved by the deployment's own authority and by no other.
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
    """A folder holds no certificate that can be used; the message is the end of a sentence."""


@dataclass(frozen=True, slots=True)
class TlsSource:
    """The source names where the files are; it is plain data, which can go to another process."""

    folder: str
    """Folder with ``tls.crt``, ``tls.key`` and ``ca.crt``, in PEM."""
    name: str
    """Name that the certificate is for."""

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
    """The contexts are made of the files, and equal if the files are."""

    said: dict[str, bytes]
    """Contents of the files, by name."""
    server: ssl.SSLContext = field(compare=False)
    """Context to listen with."""
    client: ssl.SSLContext = field(compare=False)
    """Context to call with."""


class LiveTls:
    """Live TLS opens each connection with the certificate that is valid then.

    server: context to listen with.
    client: context to call with.

    Raises TlsError when the files cannot be used at the start.
    """

    def __init__(self, source: TlsSource, clock: Callable[[], float] = time.monotonic) -> None:
        contexts = Reloaded(source.read, "certificate", clock)
        self.server: ssl.SSLContext = _LiveContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.opening = lambda: contexts.value.server
        self.client: ssl.SSLContext = _LiveContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client.opening = lambda: contexts.value.client
        self.client.name = source.name


class _LiveContext(ssl.SSLContext):
    """A live context hands each connection over to the context that is valid then.

    opening: returns the context for a connection that begins now.
    name: server name that a client asks for, whatever address it calls.
    """

    opening: Callable[[], ssl.SSLContext]
    name: str | None = None

    def wrap_bio(self, incoming, outgoing, server_side=False, server_hostname=None, session=None):
        return self.opening().wrap_bio(incoming, outgoing, server_side, self.name, session)


class _ServerSide(ssl.SSLObject):
    """The server side logs why a handshake fails, which nothing else does."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError):
            raise  # not done yet, or a caller that only looks whether somebody listens
        except ssl.SSLError as error:
            log_failed_handshake("caller", error)
            raise


class _ServerContext(ssl.SSLContext):
    sslobject_class = _ServerSide


def log_failed_handshake(peer: str, error: ssl.SSLError | ssl.CertificateError) -> None:
    """Log why there is no TLS with a peer; the same at most once a minute, as peers retry."""
    failure = (peer, _cause(error))
    now = time.monotonic()
    if now - logged_at.get(failure, -LOG_AGAIN_S) >= LOG_AGAIN_S:
        if len(logged_at) >= MAX_LOGGED:
            logged_at.clear()
        logged_at[failure] = now
        log.error("TLS handshake failed", peer=peer, reason=failure[1])


logged_at: dict[tuple[str, str], float] = {}
"""When each failure was logged last, by peer and reason, on the monotonic clock."""

_CAUSES = {
    "HTTP_REQUEST": "peer speaks plain HTTP",
    "WRONG_VERSION_NUMBER": "peer does not speak TLS",
}


def _cause(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate rejected: {error.verify_message}"
    return _CAUSES.get(reason := _reason(error), reason.replace("_", " ").lower())


def _reason(error: OSError) -> str:
    """Return OpenSSL's reason, in its capitals, or the operating system's."""
    return getattr(error, "reason", None) or error.strerror or str(error)


def base_url(tls: LiveTls | TlsSource | None, host: str, port: int) -> str:
    """Return the base URL of a server that listens with this TLS, or without."""
    return f"{'https' if tls else 'http'}://{host}:{port}"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"{path} cannot be read: {error.strerror}") from error
