"""The session of a request: its name from the client, and the key that cells route by."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from starlette.datastructures import Headers

from macroserve.api.messages import SESSION_KEY_BYTES

SESSION_HEADER = "x-session-id"
"""Header with the session's name in ``vllm serve``."""

OTHER_HEADERS = (
    "x-session-affinity",
    "x-claude-code-session-id",
    "x-dynamo-session-id",
    "session-id",
    "session_id",
)
"""Headers of opencode, Claude Code, Dynamo and Codex (the last two), in order of precedence."""


def other_session_name(headers: Headers, body: Mapping[str, Any]) -> str | None:
    """Return the session's name from headers or fields that vLLM does not read, if no others have
    one: ``OTHER_HEADERS``, then ``prompt_cache_key`` of OpenAI's API.

    vLLM reads ``session_id`` of the body, ``SESSION_HEADER`` and ``session_id`` of ``vllm_xargs``.
    """
    arguments = body.get("vllm_xargs")
    of_vllm = (
        body.get("session_id"),
        headers.get(SESSION_HEADER),
        isinstance(arguments, dict) and arguments.get("session_id"),
    )
    if any(of_vllm):
        return None
    named = (*(headers.get(name) for name in OTHER_HEADERS), body.get("prompt_cache_key"))
    return next((name for name in named if name and isinstance(name, str)), None)


def session_key(session: str | None) -> bytes:
    """Return the key (``messages.RouteQuery.session``) of a session; empty for none."""
    if not session:
        return b""
    return blake2b(session.encode(), digest_size=SESSION_KEY_BYTES).digest()
