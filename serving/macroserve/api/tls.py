"""Servers, callers and the signer of a deployment agree on these TLS settings."""

import ssl
from dataclasses import dataclass

CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"
"""Keys in a Secret, and names of files in a pod."""


def tls_name(namespace: str, macroinstance: str) -> str:
    """Return the one server name of all components of a MacroInstance, which is not in DNS.

    Addresses change with the pods, so callers ask for this name at every address.
    """
    return f"{macroinstance}.{namespace}.macroserve.internal"


@dataclass(frozen=True, slots=True)
class TlsPeer:
    """A peer's certificate must have this name and be signed by the authority of this context."""

    name: str
    context: ssl.SSLContext


def client_context() -> ssl.SSLContext:
    """Return a context for clients. It trusts no peer until an authority is loaded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # An authority signed by another one is trusted as well.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
