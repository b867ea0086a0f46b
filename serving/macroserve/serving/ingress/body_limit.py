"""Limits on the size of request bodies, of each and of all at the same time, and their check."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from macroserve.engine.tokens import RefusedError
from macroserve.serving.http.errors import error_response
from macroserve.serving.ingress.request_check import Checked
from macroserve.serving.ingress.request_targets import in_class

MAX_BODY_BYTES = 8 << 20
MAX_TOTAL_BYTES = 64 << 20
"""Eight of the largest bodies, thousands of usual ones."""
BODY_TIMEOUT_S = 30.0


class BodyLimit:
    """Middleware that reads the whole body, checks it, and then calls the application in the
    request's SLO class.

    It answers 413 for a body above max_bytes, 408 after BODY_TIMEOUT_S, and 503 while the bodies of
    all unanswered requests exceed max_total_bytes. A body that never ends occupies a connection,
    but no handler.
    """

    def __init__(
        self,
        app: ASGIApp,
        check: Callable[[Scope, bytes], Checked],
        max_bytes: int = MAX_BODY_BYTES,
        max_total_bytes: int = MAX_TOTAL_BYTES,
    ) -> None:
        self._app = app
        self._check = check
        self._max_bytes = max_bytes
        self._max_total_bytes = max_total_bytes
        self._total_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        held = _Held()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                await self._read(scope, receive, held)
            scope, body, slo_class = self._check(scope, bytes(held.body))
        except TimeoutError:
            self._give_back(held)
            await error_response(408, "the body did not arrive in time")(scope, receive, send)
            return
        except RefusedError as refusal:
            self._give_back(held)
            await error_response(refusal.status, refusal.message)(scope, receive, send)
            return
        except BaseException:
            self._give_back(held)
            raise
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        held.body.clear()
        del body

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        async def send_and_give_back(message: Message) -> None:
            self._give_back(held)
            await send(message)

        try:
            with nullcontext() if slo_class is None else in_class(slo_class):
                await self._app(scope, replay, send_and_give_back)
        finally:
            self._give_back(held)

    async def _read(self, scope: Scope, receive: Receive, held: "_Held") -> None:
        """Read the body into ``held``, which stays empty if the client disconnects. Raises
        RefusedError if it is too large."""
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length) > self._max_bytes:
            raise self._too_large()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                held.body.clear()
                return
            part = message.get("body", b"")
            if len(held.body) + len(part) > self._max_bytes:
                raise self._too_large()
            if self._total_bytes + len(part) > self._max_total_bytes:
                raise RefusedError(503, "too many large bodies at the same time")
            held.body += part
            held.num_bytes += len(part)
            self._total_bytes += len(part)
            if not message.get("more_body", False):
                return

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"the body is larger than {self._max_bytes} bytes")

    def _give_back(self, held: "_Held") -> None:
        self._total_bytes -= held.num_bytes
        held.num_bytes = 0


class _Held:
    """A body, and the bytes of it that are counted in the total."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.num_bytes = 0
