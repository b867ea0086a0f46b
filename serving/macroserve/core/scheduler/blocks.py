"""The block ledger counts the cache blocks that are reserved for every request.

Pages are fungible, so a reservation is only a count.
"""

from enum import Enum

from macroserve.core.scheduler.engine_cache import EngineCache


class CacheKind(Enum):
    """A request's tokens are cached in one of these forms."""

    KV = "kv"
    HIDDEN = "hidden"
    """The inputs of the attention blocks, from which keys and values are recomputed."""


class BlockLedger:
    """The ledger reserves blocks: those that a request has, and those that it may still take.

    A block holds keys and values of ``block_size`` tokens or hidden states of
    ``hidden_states_per_block``, which is None if no hidden states are kept.

    cache: the engine's record, where requests may share blocks. Without it none are shared, and
        free and reserved blocks add up to the pool.
    """

    __slots__ = (
        "_cache",
        "_held",
        "_hidden_states_per_block",
        "_num_reserved",
        "_num_still_shared",
        "_shared",
        "block_size",
        "num_blocks",
    )

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        hidden_states_per_block: int | None = None,
        cache: EngineCache | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._hidden_states_per_block = hidden_states_per_block or block_size
        self._cache = cache
        self._held: dict[str, int] = {}
        self._num_reserved = 0
        # What the engine has not carried out yet: blocks that it will share by a grant, and blocks
        # that it will not have back by a release.
        self._shared: dict[str, int] = {}
        self._num_still_shared = 0

    @property
    def free(self) -> int:
        """Return the number of blocks that are reserved for no request."""
        if self._cache is None:
            return self.num_blocks - self._num_reserved
        num_to_allocate = self._num_reserved - self._cache.allocated
        num_to_share = sum(self._shared.values()) - self._num_still_shared
        return self._cache.free + num_to_share - num_to_allocate

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

    def grant(self, request_id: str, num_blocks: int, num_shared: int = 0) -> None:
        """Reserve ``num_blocks`` more blocks for a request, of which others hold ``num_shared``."""
        free = self.free
        assert 0 <= num_shared < num_blocks <= free + num_shared, (
            f"{num_blocks} blocks granted, {num_shared} of them shared, of {free} free"
        )
        self._num_reserved += num_blocks
        if num_shared:
            self._shared[request_id] = num_shared
        self._held[request_id] = self.held_by(request_id) + num_blocks

    def transfer(self, giver: str, taker: str, num_blocks: int) -> None:
        """Transfer blocks from one holder to another."""
        held = self.held_by(giver)
        assert 0 <= num_blocks <= held, f"{giver} holds {held} blocks and gives {num_blocks}"
        self._held[giver] = held - num_blocks
        self._held[taker] = self.held_by(taker) + num_blocks

    def release(self, request_id: str) -> None:
        """Take a request's reservation back."""
        self._num_reserved -= self._held.pop(request_id, 0)
        self._shared.pop(request_id, None)
        if self._cache is not None:
            self._num_still_shared += self._cache.shared_by(request_id)

    def read_again(self) -> None:
        """Note that the engine's record has changed. It shows all releases; a grant shows once the
        request has begun."""
        self._num_still_shared = 0
        if self._cache is not None and self._shared:
            hits = {name: self._cache.find(name).num_held_blocks for name in self._shared}
            self._shared = {name: num_held for name, num_held in hits.items() if num_held}

    def check(self) -> None:
        """Assert that the counts agree. The scheduler calls it when idle."""
        assert self._num_reserved == sum(self._held.values())
        assert 0 <= self.free <= self.num_blocks
        assert self._held or self.free == self.num_blocks, "blocks are lost"
