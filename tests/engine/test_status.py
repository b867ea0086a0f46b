"""Statuses travel from the engine's process over a datagram socket."""

import asyncio
from pathlib import Path

from macroserve.core.status import InstanceStatus
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
