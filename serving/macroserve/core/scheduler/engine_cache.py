"""An engine that keeps its own record of its cache blocks is asked for it."""

from typing import NamedTuple, Protocol


class Hit(NamedTuple):
    """A hit is what the prefix cache has of a request's prompt."""

    num_tokens: int = 0
    """Prompt tokens that need not be computed; fewer than the prompt has."""
    num_held_blocks: int = 0
    """Number of their blocks that other requests hold: these take no free block."""
    load_s: float = 0.0
    """Predicted time to load the tokens that only the memory of the host has, seconds."""


MISS = Hit()


class EngineCache(Protocol):
    """The engine's record is the truth on free and shared blocks; reading it changes nothing."""

    @property
    def free(self) -> int:
        """Return the number of blocks that no request has; some of them are in the prefix cache."""
        ...

    @property
    def allocated(self) -> int:
        """Return the number of blocks that requests have; a shared one counts for each of them."""
        ...

    def keeps_to(self, request_id: str, num_blocks: int) -> bool:
        """Return whether a request whose prompt is computed has no more than ``num_blocks``."""
        ...

    def shared_by(self, request_id: str) -> int:
        """Return the number of a request's blocks that other requests have as well."""
        ...

    def num_cached(self, request_id: str, last_found: int) -> int:
        """Return the tokens that ``find`` would, quickly if they are ``last_found`` as before."""
        ...

    def find(self, request_id: str) -> Hit:
        """Return what the prefix cache has of a request's prompt; nothing while it runs, nor once
        it has ended."""
        ...
