"""Statuses travel from the engine's process over a datagram socket."""

import asyncio
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from macroserve.core.status import InstanceStatus, Phase
from macroserve.engine.status import MIN_INTERVAL_S, StatusReceiver, StatusSender, decode


def ignored(_: object) -> None:
    """Take a heartbeat, of which these tests send none."""


async def test_status_arrives_after_the_sockets_folder_is_removed(tmp_path: Path) -> None:
    arrived: asyncio.Queue[bytes] = asyncio.Queue()
    path = tmp_path / "status"
    receiver = await StatusReceiver.listen(str(path), arrived.put_nowait, ignored)
    sender = StatusSender(str(path))
    path.unlink()
    sender.send(InstanceStatus(seq=7), has_news=False)
    async with asyncio.timeout(10):
        assert decode(await arrived.get()).seq == 7
    receiver.close()


WORKING = InstanceStatus(seq=0, phase=Phase.DECODE, num_running=1, num_decoding=1)


async def sent(tmp_path: Path, *statuses: InstanceStatus, news: int) -> list[InstanceStatus]:
    """Send statuses at one time, and return those that arrive before a last one with news.

    news: number of the only other one with news.
    """
    arrived: asyncio.Queue[bytes] = asyncio.Queue()
    path = tmp_path / "status"
    receiver = await StatusReceiver.listen(str(path), arrived.put_nowait, ignored)
    sender = StatusSender(str(path), clock=lambda: 0.0)
    for status in (*statuses, after(99)):
        sender.send(status, has_news=status.seq in (news, 99))
    found: list[InstanceStatus] = []
    async with asyncio.timeout(10):
        while not found or found[-1].seq != 99:
            found.append(decode(await arrived.get()))
    receiver.close()
    return found[:-1]


def after(seq: int, **changes: Any) -> InstanceStatus:
    return replace(WORKING, seq=seq, **changes)


async def test_statuses_of_short_steps_wait_for_a_later_one(tmp_path: Path) -> None:
    found = await sent(tmp_path, *map(after, range(9)), news=0)
    assert [status.seq for status in found] == [0]


async def test_status_with_news_goes_out_at_once(tmp_path: Path) -> None:
    found = await sent(tmp_path, *map(after, range(4)), news=2)
    assert [status.seq for status in found] == [0, 2]


async def test_status_is_due_when_the_interval_ends_within_the_time(tmp_path: Path) -> None:
    receiver = await StatusReceiver.listen(str(tmp_path / "status"), ignored, ignored)
    sender = StatusSender(str(tmp_path / "status"), clock=lambda: 0.0)
    assert sender.is_due()
    sender.send(WORKING, has_news=False)
    assert not sender.is_due() and not sender.is_due(0.9 * MIN_INTERVAL_S)
    assert sender.is_due(MIN_INTERVAL_S)
    receiver.close()


async def test_status_that_waited_arrives_without_another(tmp_path: Path) -> None:
    arrived: asyncio.Queue[bytes] = asyncio.Queue()
    path = tmp_path / "status"
    receiver = await StatusReceiver.listen(str(path), arrived.put_nowait, ignored)
    sender = StatusSender(str(path))
    for seq in range(3):
        sender.send(after(seq), has_news=False)
    async with asyncio.timeout(10):
        seqs = [decode(await arrived.get()).seq]
        while seqs[-1] != 2:
            seqs.append(decode(await arrived.get()).seq)
    receiver.close()
