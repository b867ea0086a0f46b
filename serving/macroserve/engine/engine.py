"""The interface of an engine for its instance server, whichever executor is inside."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.applications import Starlette

from macroserve.engine.tokens import Stopped, TokenReader


@dataclass(frozen=True, slots=True)
class EngineShape:
    """Sizes and caches of a started engine."""

    num_blocks: int
    """Blocks of the KV cache."""
    block_size: int
    """Tokens per block."""
    max_num_seqs: int
    """Maximum sequences of one batch."""
    max_batch_tokens: int
    """Maximum tokens of one batch."""
    hybrid_cache: str
    """``on: `` or ``off: ``, and the reason."""
    prefix_caching: str
    """``on: `` or ``off: ``, and the reason."""
    load_s: float = 0.0
    """Time in which the engine fetched and loaded the weights and compiled code, seconds."""
    warm_up_s: float = 0.0
    """Time in which it then generated its first tokens, seconds."""


Leave = Callable[[], Awaitable[None]]
"""Function that ends a request whose reader is gone; ignored if it has ended."""


class Engine(Protocol):
    """An engine, which is started once and stopped once."""

    async def start(self, status_path: str | None = None) -> Starlette:
        """Start the engine; return once it has generated its first token.

        The application has the engine's handlers of exceptions and no route yet.

        status_path: path of the datagram socket that receives statuses and heartbeats (see
            ``status``).
        """
        ...

    @property
    def shape(self) -> EngineShape: ...

    @property
    def fault(self) -> str | None:
        """Return why the engine can serve no more, as the end of a sentence; None while it can."""
        ...

    @property
    def num_unfinished(self) -> int:
        """Return the requests passed to the engine that have not ended, as seen by this process."""
        ...

    async def submit(self, body: dict[str, Any], reader: TokenReader) -> Leave:
        """Start a request, whose tokens go to the reader; the first may come before this returns.

        body: vLLM's ``GenerateRequest`` as JSON values.

        Raises RefusedError if the request cannot be served.
        """
        ...

    async def end_stopped(self, stopped: Stopped) -> None:
        """End a request whose text has met a stop string, unless it has ended."""
        ...

    async def probe(self) -> None:
        """Generate one token, which proves that the whole engine works."""
        ...

    async def command(self, verb: str, argument: Any = None) -> Any:
        """Apply a command as ``commands.apply_command`` does."""
        ...

    async def stop(self) -> None: ...
