"""Limits on the size of request bodies: of each, and of all at the same time."""

import asyncio

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from macroserve.serving.http.middleware import error_response

MAX_BODY_BYTES = 8 << 20
MAX_TOTAL_BYTES = 64 << 20
"""Eight of the largest bodies, thousands of usual ones."""
BODY_TIMEOUT_S = 30.0


class BodyLimit:
    """Middleware that reads the whole body before the application is called.

    It answers 413 for a body above max_bytes, 408 after BODY_TIMEOUT_S, and 503 while the bodies of
    all unanswered requests exceed max_total_bytes. A body that never ends occupies a connection,
    but no handler.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int = MAX_BODY_BYTES,
        max_total_bytes: int = MAX_TOTAL_BYTES,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_total_bytes = max_total_bytes
        self._total_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        held = _Held()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                refusal = await self._read(scope, receive, held)
        except TimeoutError:
            refusal = error_response(408, "the body did not arrive in time")
        except BaseException:
            self._give_back(held)
            raise
        if refusal is not None:
            self._give_back(held)
            await refusal(scope, receive, send)
            return
        messages: list[Message] = [
            {"type": "http.request", "body": bytes(held.body), "more_body": False}
        ]
        held.body.clear()

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        async def send_and_give_back(message: Message) -> None:
            self._give_back(held)
            await send(message)

        try:
            await self._app(scope, replay, send_and_give_back)
        finally:
            self._give_back(held)

    async def _read(self, scope: Scope, receive: Receive, held: "_Held") -> Response | None:
        """Read the body into ``held``, which stays empty if the client disconnects; return the
        refusal, if any."""
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length) > self._max_bytes:
            return self._too_large()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                held.body.clear()
                return None
            part = message.get("body", b"")
            if len(held.body) + len(part) > self._max_bytes:
                return self._too_large()
            if self._total_bytes + len(part) > self._max_total_bytes:
                return error_response(503, "too many large bodies at the same time")
            held.body += part
            held.num_bytes += len(part)
            self._total_bytes += len(part)
            if not message.get("more_body", False):
                return None

    def _too_large(self) -> Response:
        return error_response(413, f"the body is larger than {self._max_bytes} bytes")

    def _give_back(self, held: "_Held") -> None:
        self._total_bytes -= held.num_bytes
        held.num_bytes = 0


class _Held:
    """A body, and the bytes of it that are counted in the total."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.num_bytes = 0
