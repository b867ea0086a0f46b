"""The names by which a client may tell its session."""

from typing import Any

import pytest
from starlette.datastructures import Headers

from macroserve.serving.ingress.session_name import OTHER_HEADERS, other_session_name


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
