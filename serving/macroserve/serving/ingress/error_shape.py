"""Errors of the public endpoint in OpenAI's or Anthropic's shape, with the manifest's field names.

``http.middleware.RetryAfter`` adds Retry-After to 429 and 503; its value is computed in
``core.routing.queue_wait``.
"""

import json
import re
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from macroserve.api.option_names import in_manifest_words
from macroserve.serving.http.middleware import error_body
from macroserve.serving.ingress.public_routes import is_anthropic

MAX_ERROR_BYTES = 64 << 10
_ERROR_EVENT = re.compile(
    rb'(?P<name>(event: error\n)?)data: (?P<data>\{("type":"error",)?"error":.*\})\n\n'
)
_OWN_HEADERS = (b"content-length", b"content-type", b"transfer-encoding")
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ErrorShape:
    """Middleware that rewrites responses of 400 and above (a framework's ``{"detail": ...}``, plain
    text) to OpenAI's shape, on ``/v1/messages`` to Anthropic's. Flags of vLLM in a message become
    fields of the manifest, also in an event that ends a stream."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message | None = None
        passed = False
        body = bytearray()

        async def send_in_shape(message: Message) -> None:
            nonlocal start, passed
            if message["type"] == "http.response.start" and message["status"] >= 400:
                start = message
            elif start is None:
                passed = True
                await send(_event_in_manifest_words(message))
            else:
                body.extend(message.get("body", b""))
                del body[MAX_ERROR_BYTES:]
                if not message.get("more_body", False):
                    await _shaped(scope["path"], start, bytes(body))(scope, receive, send)

        try:
            await self._app(scope, receive, send_in_shape)
        except Exception:
            if start is None and not passed:
                await _shaped(scope["path"], {"status": 500}, b"internal error")(
                    scope, receive, send
                )
            raise


def _shaped(path: str, start: Message, body: bytes) -> JSONResponse:
    status = start["status"]
    openai = _decoded(body)
    if not _is_openai(openai):
        openai = error_body(status, _message(openai, body, status))
    openai["error"]["message"] = in_manifest_words(openai["error"]["message"])
    content = openai
    if is_anthropic(path):
        error = {
            "type": _ANTHROPIC_TYPES.get(
                status, "invalid_request_error" if status < 500 else "api_error"
            ),
            "message": openai["error"]["message"],
        }
        content = {"type": "error", "error": error}
    response = JSONResponse(content, status_code=status)
    kept = [(k, v) for k, v in start.get("headers", []) if k.lower() not in _OWN_HEADERS]
    response.raw_headers.extend(kept)
    return response


def _event_in_manifest_words(message: Message) -> Message:
    """Rewrite the error event of a stream, if it is one; vLLM sends each event as one message."""
    if not (found := _ERROR_EVENT.fullmatch(message.get("body", b""))):
        return message
    content = _decoded(found["data"])
    if not _is_openai(content):
        return message
    content["error"]["message"] = in_manifest_words(content["error"]["message"])
    event = found["name"] + b"data: " + json.dumps(content).encode() + b"\n\n"
    return {**message, "body": event}


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _is_openai(content: Any) -> bool:
    """Return whether an error has OpenAI's shape; Anthropic's also counts and is restored later."""
    return (
        isinstance(content, dict)
        and isinstance(content.get("error"), dict)
        and isinstance(content["error"].get("message"), str)
    )


def _message(content: Any, body: bytes, status: int) -> str:
    detail = content.get("detail") if isinstance(content, dict) else None
    if isinstance(detail, str) and detail:
        return detail
    return body.decode("utf-8", "replace").strip()[:500] or f"HTTP status {status}"
