"""The check of a request's body, and the choice of its latency targets and session name."""

from http import HTTPStatus
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from macroserve.api.limit_check import excess, excess_of_bytes
from macroserve.api.limits import RequestLimits
from macroserve.engine.tokens import RefusedError
from macroserve.serving.http.middleware import error_response
from macroserve.serving.ingress.gate import KEY_CLASS
from macroserve.serving.ingress.request_targets import RequestTargets, in_class
from macroserve.serving.ingress.session import SESSION_HEADER, other_session_name

CHECKED_PREFIXES = ("/v1", "/tokenize", "/detokenize", "/generative_scoring")


class RequestCheck:
    """Middleware that answers 400 for a body that is no JSON object or exceeds a limit, and 400 or
    403 for wrong targets.

    It runs inside ``BodyLimit``, which has read the whole body. The application gets the checked
    body encoded again, so that two decoders cannot interpret one text differently.
    """

    def __init__(self, app: ASGIApp, limits: RequestLimits, targets: RequestTargets) -> None:
        self._app = app
        self._limits = limits
        self._targets = targets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(CHECKED_PREFIXES):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        message = await receive()
        assert not message.get("more_body", False), "BodyLimit has read the whole body"
        model: object = None
        try:
            if body := message.get("body", b""):
                decoded = _decoded(body, self._limits)
                model = decoded.get("model")
                message = {**message, "body": msgspec.json.encode(decoded)}
                if session := other_session_name(headers, decoded):
                    scope = _with_header(scope, SESSION_HEADER.encode(), session.encode())
                del body, decoded
            chosen = self._targets.choose(headers, scope.get(KEY_CLASS), model)
        except RefusedError as refusal:
            await error_response(refusal.status, refusal.message)(scope, receive, send)
            return
        messages: list[Message] = [message]
        del message

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        with in_class(chosen):
            await self._app(scope, replay, send)


def _with_header(scope: Scope, name: bytes, value: bytes) -> Scope:
    others = [header for header in scope["headers"] if header[0] != name]
    return {**scope, "headers": [*others, (name, value)]}


def _decoded(body: bytes, limits: RequestLimits) -> dict[str, Any]:
    """Return the decoded body. Raises RefusedError with the problem."""
    if problem := excess_of_bytes(body, limits):
        raise _wrong(problem)
    try:
        decoded = msgspec.json.decode(body)
    except RecursionError:
        raise _wrong(f"the body is nested too deeply; at most {limits.depth} levels") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise _wrong(f"the body is not valid JSON: {error}") from None
    if not isinstance(decoded, dict):
        raise _wrong("the body is not a JSON object")
    if problem := excess(decoded, limits):
        raise _wrong(problem)
    return decoded


def _wrong(problem: str) -> RefusedError:
    return RefusedError(HTTPStatus.BAD_REQUEST, problem)
