"""An ingress that reads slowly or not at all holds up neither the engine nor other ingresses."""

import asyncio
from typing import Any

import pytest
from support.framed_instance import NAME, client, framed_instance
from support.keys import live
from support.token_requests import token_request

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.engine.token_frames import (
    CANCEL_PATH,
    CONNECTION_HEADER,
    FRAMES_PATH,
    FrameParser,
    Item,
)
from macroserve.engine.tokens import Choice
from macroserve.serving.ingress.instance_client import BrokenError
from macroserve.serving.instance import token_frames
from macroserve.serving.instance.token_frames import Connection
from macroserve.serving.security.calls import session, to

NUM_STREAMS = 200


def put(choice: Choice) -> None:
    """Ignore the tokens."""


async def test_tokens_that_nobody_reads_are_merged() -> None:
    connection = Connection()
    frames = connection.frames()
    await anext(frames)
    for token in range(1000):
        for stream in range(3):
            connection.put(stream, Choice([token]))
    assert list(FrameParser().feed(await anext(frames))) == [
        [Item(stream, list(range(1000))) for stream in range(3)]
    ]


async def test_ingress_that_does_not_read_leaves_another_its_tokens() -> None:
    async with framed_instance() as instance, client() as ingress, session(live()) as http:
        headers = {CONNECTION_HEADER: "silent", **to(Audience(Purpose.GENERATION, NAME))}
        async with http.get(instance.address + FRAMES_PATH, headers=headers) as silent:
            assert silent.status == 200
            request = token_request("r", range(10))
            task = asyncio.create_task(ingress.stream(NAME, instance.address, request, put))
            sequence = await instance.sequence()
            assert instance.frames is not None
            unread = instance.frames._connections["silent"]
            many = list(range(100_000))
            for _ in range(50):  # megabytes: more than the buffers of the kernel hold
                unread.put(0, Choice(many))
                await asyncio.sleep(0)
            sequence.put(1, finish="length")
            await task
            silent.close()


async def test_requests_of_an_ingress_that_was_killed_end_at_the_instance() -> None:
    async with framed_instance() as instance:
        async with client() as ingress:
            tasks = [
                asyncio.create_task(
                    ingress.stream(NAME, instance.address, token_request(f"r{i}", range(10)), put)
                )
                for i in range(NUM_STREAMS)
            ]
            await instance.sequence(NUM_STREAMS - 1)
            # As the kernel does for a process that ends: no cancellation is sent.
            (connection,) = ingress._connections.values()
            assert connection._reading is not None
            connection._reading.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            async with asyncio.timeout(10):
                await asyncio.gather(*(each.ended.wait() for each in instance.sequences))
        assert CANCEL_PATH not in instance.paths
        assert instance.frames is not None and not instance.frames._connections


async def test_frame_that_is_cut_in_half_breaks_the_streams_and_yields_no_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = token_frames.frames

    was_cut = asyncio.Event()

    def cut(items: Any) -> list[bytes]:
        if items:
            was_cut.set()
        return [data[:-1] if items else data for data in whole(items)]

    monkeypatch.setattr(token_frames, "frames", cut)
    taken: list[Choice] = []
    async with framed_instance() as instance, client() as ingress:
        request = token_request("r", range(10))
        task = asyncio.create_task(ingress.stream(NAME, instance.address, request, taken.append))
        sequence = await instance.sequence()
        sequence.put(1)
        await was_cut.wait()
        assert instance.server is not None
        instance.server.kill()
        with pytest.raises(BrokenError):
            await task
    assert not [choice for choice in taken if choice.token_ids]
