"""TLS settings on which servers, callers and the signer of a deployment agree."""

import ssl
from dataclasses import dataclass

CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"
"""Keys in a Secret, and names of files in a pod."""


def tls_name(namespace: str, macroinstance: str) -> str:
    """Return the server name of all components of a MacroInstance, which is not in DNS.

    Addresses change with the pods, so callers expect this name at every address.
    """
    return f"{macroinstance}.{namespace}.macroserve.internal"


@dataclass(frozen=True, slots=True)
class TlsPeer:
    """The name and the authority that a peer's certificate must have."""

    name: str
    context: ssl.SSLContext


def client_context() -> ssl.SSLContext:
    """Return a client context, which trusts no peer until an authority is loaded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Trust an authority that is itself signed by another one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
