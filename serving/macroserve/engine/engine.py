"""What an instance server needs of an engine, whichever executor is inside."""

from dataclasses import dataclass
from typing import Any, Protocol

from starlette.applications import Starlette

from macroserve.engine.tokens import Stopped


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What a started engine turned out to have: KV blocks of ``block_size`` tokens each.

    hybrid_cache: ``on: `` or ``off: ``, and why.
    """

    num_blocks: int
    block_size: int
    max_num_seqs: int
    hybrid_cache: str


class Engine(Protocol):
    """Started once, stopped once. ``app`` serves ``POST /inference/v1/generate``."""

    async def start(self, status_path: str | None = None) -> Starlette:
        """Ready to generate: a real token has been made. status_path: of the datagram socket that
        gets statuses and beats (see ``status``)."""
        ...

    @property
    def shape(self) -> EngineShape: ...

    @property
    def fault(self) -> str | None:
        """Why the engine can serve no more, as the end of a sentence; None while it can."""
        ...

    @property
    def num_unfinished(self) -> int:
        """Requests that were passed to the engine and have not ended, as this process sees it."""
        ...

    async def end_stopped(self, stopped: Stopped) -> None:
        """End a request whose text has met a stop string; nothing for one that has ended."""
        ...

    async def probe(self) -> None:
        """Generate one token: proof that the whole engine works."""
        ...

    async def command(self, verb: str, argument: Any = None) -> Any:
        """As ``commands.apply_command``."""
        ...

    async def stop(self) -> None: ...
