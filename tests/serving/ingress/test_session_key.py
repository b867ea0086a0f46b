"""Keys of sessions are equal where the sessions are, and do not tell them."""

import pytest
from support.route_queries import route_query

from macroserve.api.messages import SESSION_KEY_BYTES
from macroserve.serving.ingress.session_key import session_key


def test_equal_sessions_have_equal_keys_and_others_do_not() -> None:
    keys = [session_key(session) for session in ("one", "one", "other", "é" * 1024)]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    assert all(len(key) == SESSION_KEY_BYTES for key in keys)


@pytest.mark.parametrize("session", [None, ""])
def test_no_session_has_no_key(session: str | None) -> None:
    assert session_key(session) == b""


@pytest.mark.parametrize(
    ("key", "known"),
    [(b"", False), (b"12345", False), (b"123456", True), (b"1234567", False)],
)
def test_key_of_another_size_is_none(key: bytes, known: bool) -> None:
    request = route_query(session=key).to_route_request(now=0.0)
    assert request.session == (int.from_bytes(key) if known else None)
