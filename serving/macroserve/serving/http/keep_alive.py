"""Send signs of life in open streams, so that a silent path and a long queue are told apart."""

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

INTERVAL_S = 1.0
COMMENT = b": keep-alive\n\n"
"""A comment of the event stream format, which readers pass over."""


class KeepAlive:
    """Send a comment whenever a stream of events has been silent for ``interval_s``."""

    def __init__(self, app: ASGIApp, interval_s: float = INTERVAL_S) -> None:
        self._app = app
        self._interval_s = interval_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stream = _Stream(send, self._interval_s)
        try:
            await self._app(scope, receive, stream.send)
        finally:
            stream.close()


class _Stream:
    def __init__(self, send: Send, interval_s: float) -> None:
        self._send = send
        self._interval_s = interval_s
        self._lock = asyncio.Lock()
        self._said = False
        self._task: asyncio.Task[None] | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.close()
        async with self._lock:
            self._said = True
            await self._send(message)
        if message["type"] == "http.response.start" and _is_stream(message):
            self._task = asyncio.create_task(self._keep_alive())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _keep_alive(self) -> None:
        comment: Message = {"type": "http.response.body", "body": COMMENT, "more_body": True}
        with contextlib.suppress(OSError):  # the reader is gone; the application is told, too
            while True:
                await asyncio.sleep(self._interval_s)
                if not self._said:
                    async with self._lock:
                        await self._send(comment)
                self._said = False


def _is_stream(message: Message) -> bool:
    content_type = Headers(raw=list(message.get("headers", []))).get("content-type", "")
    return content_type.startswith("text/event-stream")
