"""The check of a request's body against its bounds, before the application reads it."""

from http import HTTPStatus

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from macroserve.api.excess import excess, excess_of_bytes
from macroserve.api.limits import RequestLimits
from macroserve.serving.http.middleware import error_response

CHECKED_PREFIXES = ("/v1", "/tokenize", "/detokenize", "/generative_scoring")


class RequestCheck:
    """The check answers 400 for a body that is no JSON object or is beyond a bound.

    It stands behind whatever reads the whole body. The application gets the body that was checked:
    encoded again, so that two decoders cannot read two things out of one text.
    """

    def __init__(self, app: ASGIApp, limits: RequestLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(CHECKED_PREFIXES):
            await self._app(scope, receive, send)
            return
        message = await receive()
        assert not message.get("more_body", False), "the whole body was read before"
        if body := message.get("body", b""):
            checked, problem = _checked(body, self._limits)
            if problem is not None:
                await error_response(HTTPStatus.BAD_REQUEST, problem)(scope, receive, send)
                return
            message = {**message, "body": checked}
            del body, checked
        messages: list[Message] = [message]
        del message

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replay, send)


def _checked(body: bytes, limits: RequestLimits) -> tuple[bytes, str | None]:
    """Return the body to go on with, or a sentence that says what is wrong with it."""
    if problem := excess_of_bytes(body, limits):
        return b"", problem
    try:
        decoded = msgspec.json.decode(body)
    except RecursionError:
        return b"", f"the body is nested too deeply; at most {limits.depth} levels"
    except (msgspec.MsgspecError, UnicodeError) as error:
        return b"", f"the body is not valid JSON: {error}"
    if not isinstance(decoded, dict):
        return b"", "the body is not a JSON object"
    if problem := excess(decoded, limits):
        return b"", problem
    return msgspec.json.encode(decoded), None
