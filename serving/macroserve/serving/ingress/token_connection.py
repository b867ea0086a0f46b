"""The ingress's connection to an instance, over which the tokens of all its streams come.

See ``engine.token_frames`` for what travels.
"""

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
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
from macroserve.engine.tokens import Choice
from macroserve.serving.security.calls import to

CANCEL_TIMEOUT_S = 2.0
IDLE_S = 30.0
"""A connection without streams is closed after this time: it would wake both ends each second."""


Tell = Callable[[asyncio.CancelledError], Awaitable[None]]


class NoFramesError(Exception):
    """The instance is of a version that sends no frames."""


class ConnectionEndedError(Exception):
    """The instance ended the connection before the ends of its streams."""


class TokenConnection:
    """The connection gives each of its streams the tokens of that stream. A stream that is read
    slowly delays no other: what it has not read is kept, which its own length bounds.

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
        self._streams: dict[int, asyncio.Queue[Choice | Exception]] = {}
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
        self, token_ids: list[int], request: dict[str, Any], tell: Tell
    ) -> AsyncGenerator[Choice, None]:
        """Yield the choices of a request; one without tokens first, when the instance has taken the
        request in. Raises the errors of ``check``, ConnectionEndedError, and whatever ended the
        connection.

        request: the fields of vLLM's ``GenerateRequest`` but for the tokens.
        tell: called when the stream is cancelled, before the instance hears that its reader is
            gone.
        """
        number = next(self._numbers)
        queue: asyncio.Queue[Choice | Exception] = asyncio.Queue()
        self._streams[number] = queue
        ended = False
        try:
            body = encode(Call(self._name, number, pack(token_ids), request))
            async with self._http.post(
                self.address + CALL_PATH, data=body, headers=self._headers, allow_redirects=False
            ) as response:
                await self._check(response)
            yield Choice()
            while not ended:
                got = await queue.get()
                if isinstance(got, Exception):
                    ended = True
                    raise got
                ended = got.finish_reason is not None
                yield got
        except asyncio.CancelledError as end:
            await tell(end)
            raise
        finally:
            self._streams.pop(number, None)
            ended = ended or _has_ended(queue)
            self._idle_since_s = time.monotonic()
            if not ended and self.open:
                self._cancel(number)

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        """Give the streams what comes for them, until the connection ends."""
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
        if queue := self._streams.get(item.stream):
            failed = item.error and ConnectionEndedError(item.error.message)
            queue.put_nowait(failed or item.choice)
        elif item.finish_reason is None and item.error is None:
            # The notice that its client has left was lost, or came before the request.
            self._cancel(item.stream)

    @property
    def _is_idle(self) -> bool:
        return not self._streams and time.monotonic() - self._idle_since_s > IDLE_S

    def _end(self, error: Exception) -> None:
        for queue in self._streams.values():
            queue.put_nowait(error)

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


def _has_ended(queue: asyncio.Queue[Choice | Exception]) -> bool:
    """Return whether the end of a stream is among what nobody has read."""
    while not queue.empty():
        got = queue.get_nowait()
        if isinstance(got, Exception) or got.finish_reason is not None:
            return True
    return False
