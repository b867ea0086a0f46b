"""Names of a client's session, and their keys, which are equal where the names are."""

from typing import Any

import pytest
from starlette.datastructures import Headers
from support.route_queries import route_query

from macroserve.api.messages import SESSION_KEY_BYTES
from macroserve.serving.ingress.session import OTHER_HEADERS, other_session_name, session_key


@pytest.mark.parametrize("header", OTHER_HEADERS)
def test_session_in_any_known_header_is_found(header: str) -> None:
    assert other_session_name(Headers({header.title(): "one"}), {}) == "one"


@pytest.mark.parametrize(
    ("headers", "body", "name"),
    [
        ({}, {}, None),
        ({}, {"prompt_cache_key": "key"}, "key"),
        ({}, {"prompt_cache_key": ""}, None),
        ({}, {"prompt_cache_key": 7}, None),
        ({"session_id": ""}, {"prompt_cache_key": "key"}, "key"),
        ({"session_id": "codex"}, {"prompt_cache_key": "key"}, "codex"),
        ({"session_id": "codex", "x-session-affinity": "agent"}, {}, "agent"),
        ({"x-session-id": "one"}, {"prompt_cache_key": "key"}, None),
        ({"session_id": "codex"}, {"session_id": "two"}, None),
        ({}, {"vllm_xargs": {"session_id": "three"}, "prompt_cache_key": "key"}, None),
        ({}, {"vllm_xargs": {"other": 1}, "prompt_cache_key": "key"}, "key"),
        ({}, {"vllm_xargs": "three", "prompt_cache_key": "key"}, "key"),
    ],
)
def test_other_name_of_a_session_counts_only_without_one_of_vllm(
    headers: dict[str, str], body: dict[str, Any], name: str | None
) -> None:
    assert other_session_name(Headers(headers), body) == name


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
