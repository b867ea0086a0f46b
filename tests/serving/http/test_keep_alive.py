"""Open streams of events give signs of life; other responses stay as they are."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send
from support.virtual_time import run

from macroserve.engine.tokens import EventParser
from macroserve.serving.http.keep_alive import COMMENT, KeepAlive

EVENT = b'data: {"choices": []}\n\n'


async def answered(media_type: str, pause_s: float) -> list[bytes]:
    """The bodies of a response that pauses between two events."""

    async def events() -> AsyncIterator[bytes]:
        yield EVENT
        await asyncio.sleep(pause_s)
        yield EVENT

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await StreamingResponse(events(), media_type=media_type)(scope, receive, send)

    sent: list[bytes] = []

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> Message:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    await KeepAlive(app, interval_s=0.02)(scope, receive, send)
    await asyncio.sleep(0.1)  # nothing comes after the end
    return [body for body in sent if body]


def test_silent_stream_of_events_sends_comments_that_readers_pass_over() -> None:
    bodies = run(answered("text/event-stream", 0.2))
    assert bodies[0] == bodies[-1] == EVENT
    assert len(bodies) > 3 and set(bodies[1:-1]) == {COMMENT}
    assert len(list(EventParser().feed(b"".join(bodies)))) == 2


@pytest.mark.parametrize(("media_type", "pause_s"), [("text/plain", 0.2), ("text/event-stream", 0)])
def test_keep_alive_on_other_responses_and_busy_streams_adds_nothing(
    media_type: str, pause_s: float
) -> None:
    assert run(answered(media_type, pause_s)) == [EVENT, EVENT]


def test_keep_alive_on_a_whole_response_adds_nothing() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    async def answer() -> None:
        await KeepAlive(Response(b"whole"), 0.01)({"type": "http"}, receive, send)
        await asyncio.sleep(0.05)

    run(answer())
    assert [message.get("body") for message in sent] == [None, b"whole"]
