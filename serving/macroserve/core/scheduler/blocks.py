"""The block ledger counts the cache blocks that are reserved for every request.

Pages are fungible, so a reservation is only a count.
"""

from enum import Enum

from macroserve.core.scheduler.block_groups import BlockGroups
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

    num_draft_slots: slots that a request needs beyond its tokens, for drafted ones, as far as
        ``max_model_len`` allows.
    cache: the engine's record, where requests may share blocks. Without it none are shared, and
        free and reserved blocks add up to the pool.
    groups: the groups of layers that draw blocks; None for a single one that keeps them all.
        ``block_size`` is a mean then.
    """

    __slots__ = (
        "_cache",
        "_groups",
        "_held",
        "_hidden_states_per_block",
        "_max_model_len",
        "_num_draft_slots",
        "_num_reserved",
        "_num_still_shared",
        "_prefilled",
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
        groups: BlockGroups | None = None,
        num_draft_slots: int = 0,
        max_model_len: int = 0,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = groups.block_size if groups else block_size
        self._groups = groups
        self._prefilled: set[str] = set()
        self._hidden_states_per_block = hidden_states_per_block or self.block_size
        self._num_draft_slots = num_draft_slots
        self._max_model_len = max_model_len
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

    @property
    def is_grouped(self) -> bool:
        """Return whether several groups draw blocks, so that a block holds more or fewer tokens."""
        return self._groups is not None

    def blocks_for(self, num_tokens: int) -> int:
        """Return the blocks of a request that begins, drafted tokens that may follow among them."""
        num_slots = self._with_drafts(num_tokens)
        if self._groups is not None:
            return self._groups.prefilling.blocks_for(num_slots)
        return -(-num_slots // self.block_size)

    def _with_drafts(self, num_tokens: int) -> int:
        """Return the slots for the tokens of a request, and the drafted ones that may follow."""
        return num_tokens + max(0, min(self._num_draft_slots, self._max_model_len - num_tokens))

    def mean_blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that tokens of several requests take in the mean."""
        return -(-num_tokens // self.block_size)

    def missing(self, request_id: str, num_tokens: int) -> int:
        """Return the blocks that a request needs beyond its own; not above 0 if it has enough."""
        if self._groups is not None and request_id in self._prefilled:
            needed = self._groups.decoding.blocks_for(self._with_drafts(num_tokens))
        else:
            needed = self.blocks_for(num_tokens)
        return needed - self.held_by(request_id)

    def hidden_blocks(self, num_blocks: int) -> int:
        """Return the blocks for the hidden states of as many tokens as ``num_blocks`` hold as
        KV."""
        return -(-num_blocks * self.block_size // self._hidden_states_per_block)

    def mean_hidden_blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that hidden states of several requests' tokens take in the mean."""
        return -(-num_tokens // self._hidden_states_per_block)

    def held_by(self, request_id: str) -> int:
        return self._held.get(request_id, 0)

    def slots(self, cache: CacheKind) -> int:
        """Return the tokens that a block holds in a cache of that kind."""
        return self._hidden_states_per_block if cache is CacheKind.HIDDEN else self.block_size

    def room(self, request_id: str, cache: CacheKind = CacheKind.KV, num_more: int = 0) -> int:
        """Return the number of tokens that the blocks of a request, and ``num_more``, hold beside
        drafted ones."""
        num_blocks = self.held_by(request_id) + num_more
        if self._groups is not None:
            is_prefilled = request_id in self._prefilled
            kind = self._groups.decoding if is_prefilled else self._groups.prefilling
            room = kind.room(num_blocks)
        else:
            room = num_blocks * self.slots(cache)
        if self._num_draft_slots and room < self._max_model_len:
            room -= self._num_draft_slots
        return room

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

    def give_back(self, request_id: str) -> bool:
        """Take back the blocks that a request needed for its prompt alone, if the engine has done
        so. Return whether it has."""
        assert self._groups is not None, "a group that keeps all blocks gives none back"
        held = self.held_by(request_id)
        kept = self._groups.decoding.blocks_for(self._with_drafts(self.room(request_id)))
        if self._cache is not None and not self._cache.keeps_to(request_id, kept):
            return False
        self._prefilled.add(request_id)
        self._num_reserved -= held - kept
        self._held[request_id] = kept
        return True

    def release(self, request_id: str) -> None:
        """Take a request's reservation back."""
        self._prefilled.discard(request_id)
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
