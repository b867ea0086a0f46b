"""The block ledger counts the cache blocks of every request.

Pages are fungible, so a reservation is only a count. Free and held blocks always add up to the
pool.
"""

from enum import Enum


class CacheKind(Enum):
    """A request's tokens are cached in one of these forms."""

    KV = "kv"
    HIDDEN = "hidden"
    """The inputs of the attention blocks, from which keys and values are recomputed."""


class BlockLedger:
    """The ledger counts free and held blocks; ``free`` is the number that no request holds.

    A block holds keys and values of ``block_size`` tokens or hidden states of
    ``hidden_states_per_block``, which is None if no hidden states are kept.
    """

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
        """Return the blocks for the hidden states of as many tokens as ``num_blocks`` hold as
        KV."""
        return -(-num_blocks * self.block_size // self._hidden_states_per_block)

    def held_by(self, request_id: str) -> int:
        return self._held.get(request_id, 0)

    def room(self, request_id: str, cache: CacheKind = CacheKind.KV) -> int:
        """Return the number of tokens that the blocks of a request hold."""
        slots = self._hidden_states_per_block if cache is CacheKind.HIDDEN else self.block_size
        return self.held_by(request_id) * slots

    def grant(self, request_id: str, num_blocks: int) -> None:
        """Give a request ``num_blocks`` more blocks."""
        assert 0 < num_blocks <= self.free, f"{num_blocks} blocks granted of {self.free} free"
        self.free -= num_blocks
        self._held[request_id] = self.held_by(request_id) + num_blocks

    def transfer(self, giver: str, taker: str, num_blocks: int) -> None:
        """Transfer blocks from one holder to another."""
        held = self.held_by(giver)
        assert 0 <= num_blocks <= held, f"{giver} holds {held} blocks and gives {num_blocks}"
        self._held[giver] = held - num_blocks
        self._held[taker] = self.held_by(taker) + num_blocks

    def release(self, request_id: str) -> None:
        self.free += self._held.pop(request_id, 0)

    def check(self) -> None:
        """Assert that free and held blocks add up to the pool. The scheduler calls it when idle."""
        assert self.free >= 0 and self.free + sum(self._held.values()) == self.num_blocks
