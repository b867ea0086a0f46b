"""The ingress's side of the protocol of ``engine.token_frames``."""

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.engine.token_frames import (
    CALL_PATH,
    CANCEL_PATH,
    CONNECTION_HEADER,
    FRAMES_PATH,
    Call,
    Cancel,
    FrameParser,
    Item,
    encode,
)
from macroserve.engine.tokens import Choice, Put, TokenRequest, stop_string_met
from macroserve.serving.security.calls import to

CANCEL_TIMEOUT_S = 2.0
IDLE_S = 30.0
"""Time after which a connection without streams is closed, as it wakes both ends each second."""


class ConnectionEndedError(Exception):
    """The instance closed the connection before its streams ended."""


class _Stream:
    """Consumer of one request's choices; ``end`` becomes the last choice or an error."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self.end: asyncio.Future[Choice] = asyncio.get_running_loop().create_future()

    def take(self, item: Item) -> None:
        if self.end.done():
            return
        try:
            if item.error is not None:
                raise ConnectionEndedError(item.error)
            if item.finish_reason is None:
                self._put(item.choice)
            else:
                self.end.set_result(item.choice)
        except Exception as error:
            # Raised here, it would end all streams of the connection.
            self.end.set_exception(error)

    def fail(self, error: Exception) -> None:
        if not self.end.done():
            self.end.set_exception(error)


class TokenConnection:
    """A connection to one instance.

    http: a session of ``calls.session`` whose reads time out when the instance is silent.
    check: raises an error for a response that is no success.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        instance: str,
        address: str,
        check: Callable[[aiohttp.ClientResponse], Awaitable[None]],
    ) -> None:
        self._http = http
        self.address = address
        self._check = check
        self._headers = to(Audience(Purpose.GENERATION, instance))
        self._name = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._streams: dict[int, _Stream] = {}
        self._cancelling: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_since_s = time.monotonic()
        self._reading: asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        return self._reading is not None and not self._reading.done()

    @property
    def has_streams(self) -> bool:
        return bool(self._streams)

    async def start(self) -> None:
        """Connect. Raises the errors of ``check``, or aiohttp.ClientError."""
        response = await self._http.get(
            self.address + FRAMES_PATH,
            headers={CONNECTION_HEADER: self._name, **self._headers},
            allow_redirects=False,
        )
        try:
            await self._check(response)
        except BaseException:
            response.close()
            raise
        self._reading = asyncio.create_task(self._read(response))

    def break_off(self, error: Exception | None = None) -> None:
        """Close the connection; its streams raise the error."""
        if self._reading is not None:
            self._reading.cancel()
        self._end(error or ConnectionEndedError("the streams were broken off"))

    async def stream(self, request: TokenRequest, put: Put) -> Choice:
        """Pass choices to ``put``, starting with an empty one when the instance has accepted the
        request; return the last one. Raises the errors of ``check``, ConnectionEndedError, or the
        error that ended the connection."""
        number = next(self._numbers)
        self._streams[number] = stream = _Stream(put)
        num_tokens: int | None = None
        try:
            body = encode(Call(self._name, number, request))
            async with self._http.post(
                self.address + CALL_PATH, data=body, headers=self._headers, allow_redirects=False
            ) as response:
                await self._check(response)
            put(Choice())
            # Shielded, so that an end during a cancellation still counts.
            return await asyncio.shield(stream.end)
        except asyncio.CancelledError as end:
            if met := stop_string_met(end):
                # The instance counts these tokens, of which others may be on their way.
                num_tokens = max(0, met.num_tokens - request.info.num_streamed_tokens)
            raise
        finally:
            del self._streams[number]
            self._idle_since_s = time.monotonic()
            if stream.end.done():
                stream.end.exception()  # retrieved, so that asyncio does not log it
            elif self.open:
                self._cancel(number, num_tokens)

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        """Pass items to the streams until the connection ends."""
        parser = FrameParser()
        error: Exception = ConnectionEndedError("the connection ended early")
        try:
            while data := await response.content.readany():
                for items in parser.feed(data):
                    for item in items:
                        self._take(item)
                if self._is_idle:
                    return
        except (aiohttp.ClientError, OSError, msgspec.MsgspecError) as broken:
            error = broken
        finally:
            response.close()
            self._end(error)

    def _take(self, item: Item) -> None:
        if stream := self._streams.get(item.stream):
            stream.take(item)
        elif item.finish_reason is None and item.error is None:
            # The cancellation was lost, or arrived before the call.
            self._cancel(item.stream)

    @property
    def _is_idle(self) -> bool:
        return not self._streams and time.monotonic() - self._idle_since_s > IDLE_S

    def _end(self, error: Exception) -> None:
        for stream in self._streams.values():
            stream.fail(error)

    def _cancel(self, number: int, num_tokens: int | None = None) -> None:
        if number not in self._cancelling:
            self._cancelling.add(number)
            self._tasks.add(task := asyncio.create_task(self._post_cancel(number, num_tokens)))
            task.add_done_callback(self._tasks.discard)

    async def _post_cancel(self, number: int, num_tokens: int | None) -> None:
        try:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with asyncio.timeout(CANCEL_TIMEOUT_S):
                    body = encode(Cancel(self._name, number, num_tokens))
                    url = self.address + CANCEL_PATH
                    async with self._http.post(
                        url, data=body, headers=self._headers, allow_redirects=False
                    ):
                        pass
        finally:
            self._cancelling.discard(number)
