"""The cache's ledger: who holds how many blocks.

Pages are fungible, so a reservation is a count and nothing else. What is free and what is held
always add up to the pool.
"""

from enum import Enum


class CacheKind(Enum):
    """What is kept of a request's tokens."""

    KV = "kv"
    HIDDEN = "hidden"
    """The inputs of the attention blocks, from which keys and values are computed again."""


class BlockLedger:
    """``free``: blocks that nobody holds. A block holds keys and values of ``block_size`` tokens or
    hidden states of ``hidden_states_per_block``; None where no hidden states are kept."""

    __slots__ = ("_held", "_hidden_states_per_block", "block_size", "free", "num_blocks")

    def __init__(
        self, num_blocks: int, block_size: int, hidden_states_per_block: int | None = None
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._hidden_states_per_block = hidden_states_per_block or block_size
        self.free = num_blocks
        self._held: dict[str, int] = {}

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def hidden_blocks(self, num_blocks: int) -> int:
        """What the hidden states take of as many tokens as have keys and values in so many
        blocks."""
        return -(-num_blocks * self.block_size // self._hidden_states_per_block)

    def held_by(self, request_id: str) -> int:
        return self._held.get(request_id, 0)

    def room(self, request_id: str, cache: CacheKind = CacheKind.KV) -> int:
        """How many tokens its blocks hold."""
        slots = self._hidden_states_per_block if cache is CacheKind.HIDDEN else self.block_size
        return self.held_by(request_id) * slots

    def grant(self, request_id: str, num_blocks: int) -> None:
        """Give that many more blocks."""
        assert 0 < num_blocks <= self.free, f"{num_blocks} blocks granted of {self.free} free"
        self.free -= num_blocks
        self._held[request_id] = self.held_by(request_id) + num_blocks

    def transfer(self, giver: str, taker: str, num_blocks: int) -> None:
        """That many blocks of one holder are another's now."""
        held = self.held_by(giver)
        assert 0 <= num_blocks <= held, f"{giver} holds {held} blocks and gives {num_blocks}"
        self._held[giver] = held - num_blocks
        self._held[taker] = self.held_by(taker) + num_blocks

    def release(self, request_id: str) -> None:
        self.free += self._held.pop(request_id, 0)

    def check(self) -> None:
        """Assert that free and held blocks add up to the pool. The scheduler calls it when idle."""
        assert self.free >= 0 and self.free + sum(self._held.values()) == self.num_blocks
