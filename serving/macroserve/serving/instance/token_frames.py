"""The instance's side of the protocol of ``engine.token_frames``."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from macroserve.api.logs import get_logger
from macroserve.engine.engine import Leave
from macroserve.engine.token_frames import (
    CALL_PATH,
    CANCEL_PATH,
    CONNECTION_HEADER,
    FRAMES_PATH,
    INTERVAL_S,
    MAX_FRAME_BYTES,
    Item,
    decode_call,
    decode_cancel,
    frames,
)
from macroserve.engine.tokens import Choice, RefusedError, TokenReader, TokenRequest

log = get_logger(__name__)

Submit = Callable[[TokenRequest, TokenReader], Awaitable[Leave]]
"""See ``engine.engine.Engine.submit``."""


class Connection:
    """Tokens that an ingress has not read yet.

    A slow reader gets larger frames: the tokens of a stream are merged into one item, so that the
    memory is bounded by the streams' maximum lengths.
    """

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self._items: list[Item] = []
        self._open: dict[int, Item] = {}
        """Item of each stream, to which further tokens are added."""
        self._changed = asyncio.Event()
        self._closing = False

    def put(self, stream: int, choice: Choice) -> None:
        token_ids = choice.token_ids or []
        item = self._open.get(stream)
        if item is None or choice.logprobs or item.logprobs:
            item = Item(
                stream,
                [*token_ids],
                logprobs=choice.logprobs,
                num_cached=choice.num_cached,
                prompt_logprobs=choice.prompt_logprobs,
            )
            self._items.append(item)
            self._open[stream] = item
        else:
            item.token_ids += token_ids
        item.finish_reason, item.stop_reason = choice.finish_reason, choice.stop_reason
        self._changed.set()

    def fail(self, stream: int, message: str) -> None:
        self._items.append(Item(stream, error=message))
        self._changed.set()

    def close(self) -> None:
        """End the connection after its last stream."""
        self._closing = True
        self._changed.set()

    def leave(self) -> None:
        """End all streams after the reader has disconnected."""
        for stream in list(self.streams.values()):
            stream.leave()

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield frames with the items since the previous one, or empty after INTERVAL_S."""
        yield b"".join(frames(()))
        while self._items or self.streams or not self._closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_S):
                    await self._changed.wait()
            self._changed.clear()
            items, self._items = self._items, []
            self._open.clear()
            yield b"".join(frames(items))


class Stream:
    """The TokenReader of one request, which adds its tokens to the connection's frames."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._number = number
        self._leave: Leave | None = None
        self._has_left = False
        self._num_tokens: int | None = None
        """See ``leave``."""

    async def start(self, submit: Submit, request: TokenRequest) -> None:
        """Start the request. Raises the errors of ``submit``."""
        self._connection.streams[self._number] = self
        try:
            self._leave = await submit(request, self)
        except BaseException:
            self._end()
            raise
        if self._has_left:
            self._leave(self._num_tokens)

    def put(self, choice: Choice) -> None:
        if not self._has_left:
            self._connection.put(self._number, choice)
            if choice.finish_reason is not None:
                self._end()

    def fail(self, message: str) -> None:
        log.warning("stream failed", reason=message)
        if not self._has_left:
            self._connection.fail(self._number, message)
            self.leave()

    def leave(self, num_tokens: int | None = None) -> None:
        """End the request, whose client has left, or has met a stop string after ``num_tokens``."""
        self._has_left, self._num_tokens = True, num_tokens
        self._end()
        if self._leave is not None:
            self._leave(num_tokens)

    def _end(self) -> None:
        self._connection.streams.pop(self._number, None)


class TokenFrames:
    """Endpoints that start, cancel and serve the streams of all connections.

    submit: passes a request to the engine.
    fault: returns why the engine can no longer serve, None while it can.

    The server outlives its engine by up to a second. Requests after a fault get 503, which an
    ingress counts as unreachable and not as a break: they have not caused it.
    """

    def __init__(self, submit: Submit, fault: Callable[[], str | None]) -> None:
        self._submit = submit
        self._fault = fault
        self._connections: dict[str, Connection] = {}
        self._closing = False

    def routes(self) -> list[Route]:
        return [
            Route(FRAMES_PATH, self._frames),
            Route(CALL_PATH, self._call, methods=["POST"]),
            Route(CANCEL_PATH, self._cancel, methods=["POST"]),
        ]

    def close(self) -> None:
        """Accept no more calls, and end each connection after its last stream."""
        self._closing = True
        for connection in self._connections.values():
            connection.close()

    async def _frames(self, request: Request) -> Response:
        if reason := self._closed:
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        name = request.headers.get(CONNECTION_HEADER, "")
        if not name or name in self._connections:
            return _refusal(HTTPStatus.BAD_REQUEST, "the connection needs an unused id")
        self._connections[name] = connection = Connection()

        def gone() -> None:
            del self._connections[name]
            connection.leave()

        return _FramesReply(connection, gone)

    @property
    def _closed(self) -> str | None:
        return self._fault() or ("the instance stops" if self._closing else None)

    async def _call(self, request: Request) -> Response:
        if reason := self._closed:
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        try:
            call = decode_call(await _bounded_body(request))
        except (msgspec.MsgspecError, ValueError) as error:
            return _refusal(HTTPStatus.BAD_REQUEST, str(error))
        connection = self._connections.get(call.connection)
        if connection is None or self._closing:
            # 503, as the request can go to another instance.
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "there is no such connection")
        if call.stream in connection.streams:
            return _refusal(HTTPStatus.BAD_REQUEST, "the stream's number is taken")
        stream = Stream(connection, call.stream)
        try:
            await stream.start(self._submit, call.request)
        except RefusedError as refusal:
            return _refusal(refusal.status, refusal.message)
        return Response()

    async def _cancel(self, request: Request) -> Response:
        try:
            cancel = decode_cancel(await _bounded_body(request))
        except (msgspec.MsgspecError, ValueError) as error:
            return _refusal(HTTPStatus.BAD_REQUEST, str(error))
        connection = self._connections.get(cancel.connection)
        if connection and (stream := connection.streams.get(cancel.stream)):
            stream.leave(cancel.num_tokens)
        return Response(status_code=HTTPStatus.NO_CONTENT)


class _FramesReply(StreamingResponse):
    """A response that calls ``on_close`` at its end, even before the first frame."""

    def __init__(self, connection: Connection, on_close: Callable[[], None]) -> None:
        super().__init__(connection.frames(), media_type="application/octet-stream")
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()


async def _bounded_body(request: Request) -> bytes:
    """Read the body. Raises ValueError when it is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_FRAME_BYTES:
            raise ValueError(f"the body has more than {MAX_FRAME_BYTES} bytes")
    return bytes(body)


def _refusal(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=status)
