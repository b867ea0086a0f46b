"""The interface between an instance server and its engine."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from macroserve.engine.tokens import TokenReader, TokenRequest


@dataclass(frozen=True, slots=True)
class EngineShape:
    """Sizes and caches of a started engine."""

    num_blocks: int
    """Blocks of the KV cache."""
    block_size: int
    """Tokens per block."""
    max_num_seqs: int
    max_batch_tokens: int
    hybrid_cache: str
    """``on: `` or ``off: ``, and the reason."""
    prefix_caching: str
    """``on: `` or ``off: ``, and the reason."""
    load_s: float = 0.0
    """Time for fetching and loading weights and compiling code, seconds."""
    warm_up_s: float = 0.0
    """Time for the first tokens after that, seconds."""


Leave = Callable[[int | None], None]
"""Function that ends a request, if it still runs: after the given number of tokens, as a stop
string was met, or None, as its client has left."""


class Engine(Protocol):
    """An engine, to be started and stopped once."""

    async def start(self, status_path: str | None = None) -> None:
        """Start the engine; return when it has generated its first token.

        status_path: path of the datagram socket for statuses and heartbeats (see ``status``).
        """
        ...

    @property
    def shape(self) -> EngineShape: ...

    @property
    def fault(self) -> str | None:
        """Return why the engine can no longer serve, as the end of a sentence; else None."""
        ...

    @property
    def num_unfinished(self) -> int:
        """Return the number of requests in the engine, as seen by this process."""
        ...

    async def submit(self, request: TokenRequest, reader: TokenReader) -> Leave:
        """Start a request, whose first tokens may reach the reader before this returns. Raises
        RefusedError if the request cannot be served."""
        ...

    async def probe(self) -> None:
        """Generate one token, to check the whole engine."""
        ...

    async def command(self, verb: str, argument: Any = None) -> Any:
        """Apply a command of ``commands.apply_command``."""
        ...

    async def stop(self) -> None: ...
