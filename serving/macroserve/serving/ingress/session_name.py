"""A client may name its session by any of the names that are in use for it."""

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers

SESSION_HEADER = "x-session-id"
"""Header of a session's name, as in ``vllm serve``."""

OTHER_HEADERS = (
    "x-session-affinity",
    "x-claude-code-session-id",
    "x-dynamo-session-id",
    "session-id",
    "session_id",
)
"""Headers by which coding agents and other servers' clients name their sessions, the first that is
there counts: opencode, Claude Code, Dynamo and Codex (the last two)."""


def other_session_name(headers: Headers, body: Mapping[str, Any]) -> str | None:
    """Return the session's name where vLLM's own names for it are absent, and another is there.

    vLLM reads ``session_id`` of the body, ``SESSION_HEADER`` and ``session_id`` of ``vllm_xargs``
    itself. The last name that counts is ``prompt_cache_key`` of OpenAI's API.
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
