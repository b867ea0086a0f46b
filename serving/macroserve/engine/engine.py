"""What an instance server needs of an engine, whichever executor is inside."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.applications import Starlette


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

    async def start(self, on_status: Callable[[bytes], None]) -> Starlette:
        """Ready to generate: a real token has been made. ``on_status`` gets encoded statuses."""
        ...

    @property
    def shape(self) -> EngineShape: ...

    @property
    def healthy(self) -> bool: ...

    async def command(self, verb: str, argument: Any = None) -> Any:
        """As ``commands.carry_out``."""
        ...

    async def stop(self) -> None: ...
