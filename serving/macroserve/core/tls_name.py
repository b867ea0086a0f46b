"""What the certificate of a deployment is for."""


def tls_name(namespace: str, macroinstance: str) -> str:
    """One name for all parts of a MacroInstance, which no DNS knows: their addresses change with
    their pods, so that callers ask for this name wherever they call."""
    return f"{macroinstance}.{namespace}.macroserve.internal"
