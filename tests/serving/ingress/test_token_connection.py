"""The streams from an instance to an ingress share one connection, and end independently."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.framed_instance import NAME, FramedInstance, client, framed_instance
from support.iterated import iterated
from support.token_requests import token_request

from macroserve.core.batch import HandBackReason
from macroserve.engine.token_frames import CALL_PATH, CANCEL_PATH, FRAMES_PATH, INTERVAL_S
from macroserve.engine.tokens import Choice, RefusedError, StopStringMet
from macroserve.serving.ingress import token_connection
from macroserve.serving.ingress.instance_client import (
    SILENCE_S,
    BrokenError,
    HandedBackError,
    InstanceClient,
    SilentError,
    UnreachableError,
)
from macroserve.serving.instance import token_frames

PROMPT = list(range(300))


@pytest.fixture
async def instance() -> AsyncIterator[FramedInstance]:
    async with asyncio.timeout(60), framed_instance() as started:
        yield started


@pytest.fixture
async def ingress() -> AsyncIterator[InstanceClient]:
    async with client() as started:
        yield started


def streamed(
    ingress: InstanceClient, instance: FramedInstance, name: str = "r"
) -> AsyncIterator[Choice]:
    request = token_request(name, PROMPT)
    return iterated(lambda put: ingress.stream(NAME, instance.address, request, put))


async def tokens_of(choices: AsyncIterator[Choice]) -> list[int]:
    return [token for choice in [c async for c in choices] for token in choice.token_ids or []]


def reading(
    ingress: InstanceClient, instance: FramedInstance, name: str = "r"
) -> asyncio.Task[list[int]]:
    return asyncio.create_task(tokens_of(streamed(ingress, instance, name)))


async def test_streams_share_a_connection_and_keep_their_tokens_apart(
    instance: FramedInstance, ingress: InstanceClient
) -> None:
    tasks = [reading(ingress, instance, f"r{i}") for i in range(5)]
    for index in range(5):
        sequence = await instance.sequence(index)
        number = int(sequence.request.request_id[1:])
        assert sequence.request == token_request(f"r{number}", PROMPT)
        sequence.put(number, number + 10)
        sequence.put(number + 20, finish="length")
    assert await asyncio.gather(*tasks) == [[i, i + 10, i + 20] for i in range(5)]
    assert instance.paths.count(FRAMES_PATH) == 1
    assert instance.paths.count(CALL_PATH) == 5
    assert CANCEL_PATH not in instance.paths


async def test_first_choice_says_that_the_instance_has_taken_the_request_in(
    instance: FramedInstance, ingress: InstanceClient
) -> None:
    choices = streamed(ingress, instance)
    assert await anext(choices) == Choice()
    (await instance.sequence()).put(1, finish="stop")
    assert await anext(choices) == Choice([1], "stop")


async def test_tokens_before_the_answer_to_the_call_are_taken(
    instance: FramedInstance, ingress: InstanceClient
) -> None:
    instance.early = (7, 8)
    task = reading(ingress, instance)
    (await instance.sequence()).put(9, finish="length")
    assert await task == [7, 8, 9]


async def test_stream_whose_tokens_cannot_be_taken_fails_alone(
    instance: FramedInstance, ingress: InstanceClient
) -> None:
    def put(choice: Choice) -> None:
        if choice.token_ids:
            raise ValueError("a fault of the ingress")

    request = token_request("faulty", PROMPT)
    faulty = asyncio.create_task(ingress.stream(NAME, instance.address, request, put))
    sequence = await instance.sequence()
    works = reading(ingress, instance)
    (await instance.sequence(1)).put(1, finish="length")
    sequence.put(1)
    with pytest.raises(ValueError, match="a fault of the ingress"):
        await faulty
    assert await works == [1]


@pytest.mark.parametrize("status", [400, 404])
async def test_refused_request_gets_the_instances_words(
    instance: FramedInstance, ingress: InstanceClient, status: int
) -> None:
    instance.refusal = RefusedError(status, "the prompt is too long")
    with pytest.raises(RefusedError, match="the prompt is too long") as refused:
        await tokens_of(streamed(ingress, instance))
    assert refused.value.status == status


async def test_request_that_is_handed_back_says_why(
    instance: FramedInstance, ingress: InstanceClient
) -> None:
    task = reading(ingress, instance)
    (await instance.sequence()).put(finish="abort", stop="macroserve:offload")
    with pytest.raises(HandedBackError) as handed_back:
        await task
    assert handed_back.value.reason is HandBackReason.OFFLOAD


async def test_stream_that_fails_in_the_engine_is_broken_and_others_go_on(
    instance: FramedInstance, ingress: InstanceClient
) -> None:
    fails, works = reading(ingress, instance, "a"), reading(ingress, instance, "b")
    by_name = {(await instance.sequence(i)).request.request_id: i for i in range(2)}
    instance.sequences[by_name["a"]].reader.fail("out of memory")
    with pytest.raises(BrokenError, match="out of memory"):
        await fails
    instance.sequences[by_name["b"]].put(1, finish="length")
    assert await works == [1]


# -- ends by the ingress


async def test_stream_whose_client_leaves_ends_at_the_instance(
    instance: FramedInstance, ingress: InstanceClient
) -> None:
    task, other = reading(ingress, instance, "a"), reading(ingress, instance, "b")
    by_name = {(await instance.sequence(i)).request.request_id: i for i in range(2)}
    task.cancel()
    await instance.sequences[by_name["a"]].ended.wait()
    stays = instance.sequences[by_name["b"]]
    assert not stays.ended.is_set()
    stays.put(1, finish="length")
    assert await other == [1]


async def test_stream_whose_end_the_instance_missed_ends_by_its_next_token(
    instance: FramedInstance, ingress: InstanceClient
) -> None:
    instance.num_lost_cancels = 1
    task = reading(ingress, instance)
    sequence = await instance.sequence()
    task.cancel()
    await instance.lost.wait()
    assert not sequence.ended.is_set()
    sequence.put(1)
    await sequence.ended.wait()


@pytest.mark.parametrize(("message", "num_tokens"), [(StopStringMet(7), 5), (None, None)])
async def test_stream_that_meets_a_stop_string_ends_with_the_instances_own_tokens(
    instance: FramedInstance,
    ingress: InstanceClient,
    message: StopStringMet | None,
    num_tokens: int | None,
) -> None:
    """Other instances have streamed two tokens before."""
    request = token_request("r", PROMPT, num_streamed_tokens=2)
    stream = ingress.stream(NAME, instance.address, request, lambda choice: None)
    task = asyncio.create_task(stream)
    sequence = await instance.sequence()
    task.cancel(message)
    with pytest.raises(asyncio.CancelledError):
        await task
    await sequence.ended.wait()
    assert sequence.num_tokens == num_tokens


async def test_stop_string_met_before_the_instance_answers_the_call_counts(
    instance: FramedInstance, ingress: InstanceClient
) -> None:
    instance.early, came = (5,), asyncio.Event()

    def put(choice: Choice) -> None:
        if choice.token_ids:
            came.set()

    request = token_request("r", PROMPT)
    task = asyncio.create_task(ingress.stream(NAME, instance.address, request, put))
    await came.wait()
    task.cancel(StopStringMet(1))
    sequence = await instance.sequence()
    await sequence.ended.wait()
    assert sequence.num_tokens == 1


async def test_streams_that_are_broken_off_end(
    instance: FramedInstance, ingress: InstanceClient
) -> None:
    task = reading(ingress, instance)
    sequence = await instance.sequence()
    assert ingress.streaming == {NAME}
    ingress.break_off(NAME)
    with pytest.raises(BrokenError, match="broken off"):
        await task
    await sequence.ended.wait()
    assert not ingress.streaming
    again = reading(ingress, instance)
    (await instance.sequence(1)).put(2, finish="length")
    assert await again == [2]


# -- ends by the instance


async def test_instance_that_dies_breaks_its_streams(
    instance: FramedInstance, ingress: InstanceClient
) -> None:
    task = reading(ingress, instance)
    await instance.sequence()
    assert instance.server is not None
    instance.server.kill()
    with pytest.raises(BrokenError):
        await task
    with pytest.raises(UnreachableError):
        await tokens_of(streamed(ingress, instance))


async def test_instance_that_sends_nothing_is_silent(
    instance: FramedInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_frames, "INTERVAL_S", 3600.0)
    async with client(silence_s=0.3) as ingress:
        with pytest.raises(SilentError):
            await tokens_of(streamed(ingress, instance))


async def test_instance_without_a_token_for_long_is_not_silent(
    instance: FramedInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_frames, "INTERVAL_S", 0.02)
    async with client(silence_s=1.0) as ingress:
        task = reading(ingress, instance)
        sequence = await instance.sequence()
        await asyncio.wait([task], timeout=1.5)
        sequence.put(3, finish="length")
        assert await task == [3]
    assert INTERVAL_S < SILENCE_S


async def test_instance_that_stops_lets_streams_end_and_takes_no_other(
    instance: FramedInstance, ingress: InstanceClient
) -> None:
    task = reading(ingress, instance)
    sequence = await instance.sequence()
    assert instance.frames is not None
    instance.frames.close()
    with pytest.raises(UnreachableError):
        await tokens_of(streamed(ingress, instance))
    sequence.put(4, finish="length")
    assert await task == [4]


async def test_connection_without_streams_is_closed_after_a_while(
    instance: FramedInstance, ingress: InstanceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_frames, "INTERVAL_S", 0.01)
    monkeypatch.setattr(token_connection, "IDLE_S", 0.05)
    for round_ in range(2):
        task = reading(ingress, instance)
        (await instance.sequence(round_)).put(6, finish="length")
        assert await task == [6]
        await asyncio.sleep(0.3)
    assert instance.paths.count(FRAMES_PATH) == 2
