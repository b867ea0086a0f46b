"""The ingress's connection to an instance, over which the tokens of all its streams come.

See ``engine.token_frames`` for what travels.
"""

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

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
    pack,
)
from macroserve.engine.tokens import Choice, Put
from macroserve.serving.security.calls import to

CANCEL_TIMEOUT_S = 2.0
IDLE_S = 30.0
"""A connection without streams is closed after this time: it would wake both ends each second."""


Tell = Callable[[asyncio.CancelledError], Awaitable[None]]


class NoFramesError(Exception):
    """The instance is of a version that sends no frames."""


class ConnectionEndedError(Exception):
    """The instance ended the connection before the ends of its streams."""


class _Stream:
    """A stream passes its choices on; the last one, or what ended the stream instead, is its
    ``end``."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self.end: asyncio.Future[Choice] = asyncio.get_running_loop().create_future()

    def take(self, item: Item) -> None:
        if self.end.done():
            return
        try:
            if item.error is not None:
                raise ConnectionEndedError(item.error.message)
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
    """The connection passes the tokens of each of its streams on as they come.

    http: a session of ``calls.session`` whose reads time out when the instance is silent.
    check: raises the error of an answer that is no success.
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
        """Connect. Raises NoFramesError, the errors of ``check``, or aiohttp.ClientError."""
        response = await self._http.get(
            self.address + FRAMES_PATH,
            headers={CONNECTION_HEADER: self._name, **self._headers},
            allow_redirects=False,
        )
        try:
            if response.status == HTTPStatus.NOT_FOUND:
                raise NoFramesError
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

    async def stream(
        self, token_ids: list[int], request: dict[str, Any], put: Put, tell: Tell
    ) -> Choice:
        """Pass the choices of a request on but for the last, which is returned; one without tokens
        among them, when the instance has taken the request in. Raises the errors of ``check``,
        ConnectionEndedError, and whatever ended the connection.

        request: the fields of vLLM's ``GenerateRequest`` but for the tokens.
        tell: called when the stream is cancelled, before the instance hears that its reader is
            gone.
        """
        number = next(self._numbers)
        self._streams[number] = stream = _Stream(put)
        try:
            body = encode(Call(self._name, number, pack(token_ids), request))
            async with self._http.post(
                self.address + CALL_PATH, data=body, headers=self._headers, allow_redirects=False
            ) as response:
                await self._check(response)
            put(Choice())
            # Shielded, so that an end that comes while the stream is cancelled is still taken.
            return await asyncio.shield(stream.end)
        except asyncio.CancelledError as end:
            await tell(end)
            raise
        finally:
            del self._streams[number]
            self._idle_since_s = time.monotonic()
            if stream.end.done():
                stream.end.exception()  # seen, whether or not it was raised
            elif self.open:
                self._cancel(number)

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        """Pass on what comes for the streams, until the connection ends."""
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
            # The notice that its client has left was lost, or came before the request.
            self._cancel(item.stream)

    @property
    def _is_idle(self) -> bool:
        return not self._streams and time.monotonic() - self._idle_since_s > IDLE_S

    def _end(self, error: Exception) -> None:
        for stream in self._streams.values():
            stream.fail(error)

    def _cancel(self, number: int) -> None:
        if number not in self._cancelling:
            self._cancelling.add(number)
            self._tasks.add(task := asyncio.create_task(self._tell_cancelled(number)))
            task.add_done_callback(self._tasks.discard)

    async def _tell_cancelled(self, number: int) -> None:
        try:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with asyncio.timeout(CANCEL_TIMEOUT_S):
                    body = encode(Cancel(self._name, [number]))
                    url = self.address + CANCEL_PATH
                    async with self._http.post(
                        url, data=body, headers=self._headers, allow_redirects=False
                    ):
                        pass
        finally:
            self._cancelling.discard(number)
