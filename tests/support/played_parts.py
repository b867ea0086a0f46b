"""Jobs without servers, for tests of worker processes."""

import os
from dataclasses import dataclass
from multiprocessing.connection import Connection

from macroserve.api.messages import InstanceIdentity
from macroserve.local.parts import ServingJob
from macroserve.local.process import Event

IDENTITY = InstanceIdentity("instance-0", "a handle", None)


class _Server:
    def __init__(self, part: "PlayedPart") -> None:
        self._part = part

    async def start(self) -> InstanceIdentity:
        if self._part.starts_with:
            raise RuntimeError(self._part.starts_with)
        return IDENTITY

    def check(self) -> None:
        if self._part.hangs:
            os.kill(os.getpid(), 19)  # SIGSTOP
        if self._part.fails_with:
            raise RuntimeError(self._part.fails_with)


@dataclass(frozen=True)
class PlayedPart(ServingJob):
    starts_with: str = ""
    """Error of the start."""
    fails_with: str = ""
    """Error of the first check."""
    hangs: bool = False
    """The process stops at the first check."""

    def server(self) -> _Server:
        return _Server(self)


@dataclass(frozen=True)
class Echo:
    """A job that returns a message as an event."""

    def run(self, parent: Connection) -> None:
        parent.send(Event(parent.recv()))
