"""The streams from an instance to an ingress use TLS if the deployment has certificates."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import certificates, keys
from support.framed_instance import NAME, FramedInstance, client, framed_instance
from support.token_requests import token_request

from macroserve.engine.token_frames import CALL_PATH, CANCEL_PATH, FRAMES_PATH
from macroserve.engine.tokens import unpack
from macroserve.serving.ingress.instance_client import InstanceClient, UnreachableError
from macroserve.serving.security.key_source import LiveKeys
from macroserve.serving.security.reloaded import RELOAD_S
from macroserve.serving.security.tls import TlsSource

pytestmark = pytest.mark.timeout(20)

PROMPT = list(range(50_000))
"""The call of this prompt, and a frame of as many tokens, take more than one record of TLS."""


class Clock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def source(tmp_path: Path) -> TlsSource:
    return certificates.source(tmp_path / "tls")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def instance(source: TlsSource, clock: Clock) -> AsyncIterator[FramedInstance]:
    async with framed_instance(live(source, clock)) as started:
        assert started.address.startswith("https://")
        yield started


@pytest.fixture
async def ingress(source: TlsSource, clock: Clock) -> AsyncIterator[InstanceClient]:
    async with client(keys=live(source, clock)) as started:
        yield started


def live(source: TlsSource | None, clock: Callable[[], float]) -> LiveKeys:
    return LiveKeys(replace(keys.source(), tls=source), clock)


async def tokens(ingress: InstanceClient, instance: FramedInstance) -> list[int]:
    """Return the tokens of a stream from its first to its last."""
    request, found = token_request("r", PROMPT), list[int]()
    await ingress.stream(
        NAME, instance.address, request, lambda choice: found.extend(choice.token_ids or [])
    )
    return found


def reading(ingress: InstanceClient, instance: FramedInstance) -> asyncio.Task[list[int]]:
    return asyncio.create_task(tokens(ingress, instance))


async def test_streams_over_tls_have_their_tokens_and_one_connection(
    ingress: InstanceClient, instance: FramedInstance
) -> None:
    tasks = [reading(ingress, instance) for _ in range(3)]
    for index in range(len(tasks)):
        sequence = await instance.sequence(index)
        assert unpack(sequence.request.token_ids) == PROMPT
        sequence.put(1)
        sequence.put(*PROMPT, finish="length")
    assert await asyncio.gather(*tasks) == [[1, *PROMPT]] * len(tasks)
    assert (instance.paths.count(FRAMES_PATH), instance.paths.count(CALL_PATH)) == (1, len(tasks))


async def test_stream_over_tls_whose_client_leaves_ends_at_the_instance(
    ingress: InstanceClient, instance: FramedInstance
) -> None:
    task = reading(ingress, instance)
    sequence = await instance.sequence()
    task.cancel()
    await sequence.ended.wait()
    assert CANCEL_PATH in instance.paths


@pytest.mark.parametrize("knows", ["another authority", "no certificate"])
async def test_instance_whose_certificate_is_not_known_gets_no_request(
    instance: FramedInstance, clock: Clock, tmp_path: Path, knows: str
) -> None:
    other = certificates.source(tmp_path / "other") if knows == "another authority" else None
    async with client(keys=live(other, clock)) as stranger:
        with pytest.raises(UnreachableError):
            await tokens(stranger, instance)
    assert instance.paths == []


async def test_stream_goes_on_while_all_certificates_are_renewed(
    source: TlsSource, clock: Clock, ingress: InstanceClient, instance: FramedInstance
) -> None:
    task = reading(ingress, instance)
    sequence = await instance.sequence()
    sequence.put(1)
    async with client(keys=live(source, lambda: 0.0)) as former:
        # All is new: the authority, too, which the former one does not vouch for.
        certificates.source(Path(source.folder))
        clock.now_s += RELOAD_S
        async with client(keys=live(source, clock)) as later:
            begun_later = reading(later, instance)
            (await instance.sequence(1)).put(2, finish="length")
            assert await begun_later == [2]
        with pytest.raises(UnreachableError):
            await tokens(former, instance)
    sequence.put(3, finish="length")
    assert await task == [1, 3]
