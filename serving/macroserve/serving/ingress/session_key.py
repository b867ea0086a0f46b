"""An ingress makes a key of a client's session, by which cells know where it was."""

from hashlib import blake2b

from macroserve.api.messages import SESSION_KEY_BYTES


def session_key(session: str | None) -> bytes:
    """Return the key (``messages.RouteQuery.session``) of a session; empty for none."""
    if not session:
        return b""
    return blake2b(session.encode(), digest_size=SESSION_KEY_BYTES).digest()
