"""TLS between the parts of a deployment: what servers, callers and the signer agree on."""

import ssl
from dataclasses import dataclass

CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"
"""Names in a Secret, and of files in a pod."""


def tls_name(namespace: str, macroinstance: str) -> str:
    """Return the one name of all parts of a MacroInstance, which no DNS knows: their addresses
    change with their pods, so that callers ask for this name wherever they call."""
    return f"{macroinstance}.{namespace}.macroserve.internal"


@dataclass(frozen=True, slots=True)
class TlsPeer:
    """Hold the name that a peer's certificate must have, and a context with its authority."""

    name: str
    context: ssl.SSLContext


def client_context() -> ssl.SSLContext:
    """Return a context to call with. It trusts nobody until an authority is loaded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # An authority that another one has signed is trusted as well.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
