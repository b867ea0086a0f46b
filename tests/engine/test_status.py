"""Statuses travel from the engine's process over a datagram socket."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from macroserve.core.status import InstanceStatus, Phase
from macroserve.engine.status import StatusReceiver, StatusSender, decode


def ignored(_: object) -> None:
    """Take a heartbeat, of which these tests send none."""


async def test_status_arrives_after_the_sockets_folder_is_removed(tmp_path: Path) -> None:
    arrived: asyncio.Queue[bytes] = asyncio.Queue()
    path = tmp_path / "status"
    receiver = await StatusReceiver.listen(str(path), arrived.put_nowait, ignored)
    sender = StatusSender(str(path))
    path.unlink()
    sender.send(InstanceStatus(seq=7))
    async with asyncio.timeout(10):
        assert decode(await arrived.get()).seq == 7
    receiver.close()


WORKING = InstanceStatus(seq=0, phase=Phase.DECODE, num_running=1, num_decoding=1)


async def sent(tmp_path: Path, *statuses: InstanceStatus) -> list[InstanceStatus]:
    """Send statuses at one time, and return those that arrive before a last one that is urgent."""
    arrived: asyncio.Queue[bytes] = asyncio.Queue()
    path = tmp_path / "status"
    receiver = await StatusReceiver.listen(str(path), arrived.put_nowait, ignored)
    sender = StatusSender(str(path), clock=lambda: 0.0)
    for status in (*statuses, InstanceStatus(seq=99, draining=True)):
        sender.send(status)
    found: list[InstanceStatus] = []
    async with asyncio.timeout(10):
        while not found or found[-1].seq != 99:
            found.append(decode(await arrived.get()))
    receiver.close()
    return found[:-1]


def after(seq: int, **changes: Any) -> InstanceStatus:
    return replace(WORKING, seq=seq, **changes)


async def test_statuses_of_short_steps_wait_for_a_later_one(tmp_path: Path) -> None:
    found = await sent(tmp_path, WORKING, *(after(seq, iterations=seq) for seq in range(1, 9)))
    assert [status.seq for status in found] == [0]


@pytest.mark.parametrize(
    "urgent",
    [
        after(2, phase=Phase.PREFILL),
        after(2, admitted=("r",)),
        after(2, draining=True),
        after(2, num_running=0, num_decoding=0),
    ],
)
async def test_status_of_another_phase_or_admission_or_end_goes_out_at_once(
    tmp_path: Path, urgent: InstanceStatus
) -> None:
    found = await sent(tmp_path, WORKING, after(1), urgent)
    assert [status.seq for status in found] == [0, 2]


async def test_status_that_waited_arrives_without_another(tmp_path: Path) -> None:
    arrived: asyncio.Queue[bytes] = asyncio.Queue()
    path = tmp_path / "status"
    receiver = await StatusReceiver.listen(str(path), arrived.put_nowait, ignored)
    sender = StatusSender(str(path))
    for seq in range(3):
        sender.send(after(seq))
    async with asyncio.timeout(10):
        seqs = [decode(await arrived.get()).seq]
        while seqs[-1] != 2:
            seqs.append(decode(await arrived.get()).seq)
    receiver.close()
