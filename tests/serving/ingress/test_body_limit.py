"""Bodies are bounded, each and all together."""

import asyncio

import pytest
from starlette.types import Receive, Scope, Send
from support.public_app import FakeApp, ask, call, unchecked

from macroserve.serving.ingress.body_limit import BodyLimit


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
def test_body_above_the_limit_gets_413_whatever_the_method(method: str) -> None:
    app = FakeApp()
    answer = call(BodyLimit(app, unchecked, 10), "/", method=method, parts=(b"a" * 6, b"a" * 6))
    assert (answer.status, app.bodies) == (413, [])
    length = {"content-length": "11"}
    answer = call(BodyLimit(app, unchecked, 10), "/", method=method, headers=length)
    assert (answer.status, answer.num_received) == (413, 0)


def test_bodies_of_all_requests_are_bounded_until_their_responses_begin() -> None:
    begin, go_on = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["body"] == b"aaaa":
            await begin.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/stream":
            await go_on.wait()
        await send({"type": "http.response.body"})

    limit = BodyLimit(app, unchecked, 10, 10)

    async def run() -> list[int]:
        held = [asyncio.create_task(ask(limit, "/stream", parts=(b"aaaa",))) for _ in range(2)]
        await asyncio.sleep(0)
        refused = await ask(limit, "/", parts=(b"bbb",))
        fits = await ask(limit, "/", parts=(b"b",))
        begin.set()
        await asyncio.sleep(0)
        streaming = await ask(limit, "/", parts=(b"b" * 10,))
        go_on.set()
        await asyncio.gather(*held)
        return [refused.status, fits.status, streaming.status]

    assert asyncio.run(run()) == [503, 200, 200]


def test_body_that_is_refused_or_left_gives_its_bytes_back() -> None:
    limit = BodyLimit(FakeApp(), unchecked, 10, 20)

    async def run() -> list[int]:
        too_large, fits = (b"a" * 9, b"a" * 9), (b"a" * 9, b"")
        return [(await ask(limit, "/", parts=p)).status for p in [too_large] * 3 + [fits] * 3]

    assert asyncio.run(run()) == [413] * 3 + [200] * 3
