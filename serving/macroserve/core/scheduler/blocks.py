"""KV blocks of an instance: block sizes by group of layers, and a ledger of reservations."""

from bisect import bisect_left
from collections.abc import Iterable
from enum import Enum
from itertools import chain
from typing import NamedTuple, Protocol


class CacheKind(Enum):
    """Form in which a request's tokens are cached."""

    KV = "kv"
    HIDDEN = "hidden"
    """The inputs of the attention blocks, from which keys and values are recomputed."""


# -- groups of layers


class BlockGroup(NamedTuple):
    """Layers with one kind of attention, which share one list of blocks per request.

    Full attention keeps the blocks of all tokens, a sliding window those within it, and a recurrent
    layer only its state. All groups draw from one pool.
    """

    block_size: int
    """Tokens per block."""
    max_blocks: int | None = None
    """Maximum blocks of a request at a time; None if it keeps all."""
    max_decoding_blocks: int | None = None
    """Maximum after the prefill: a window's worth of blocks."""


class BlockGroups:
    """All groups of a model, with the blocks that they need per tokens of a request."""

    def __init__(self, groups: Iterable[BlockGroup], max_model_len: int) -> None:
        groups = tuple(groups)
        self.prefilling = _BlockSteps([(g.block_size, g.max_blocks) for g in groups], max_model_len)
        """Blocks of a request during its prefill."""
        self.decoding = _BlockSteps(
            [(g.block_size, g.max_decoding_blocks) for g in groups], max_model_len
        )
        """Blocks of a request after its prefill; never more than ``prefilling``."""
        self.block_size = max_model_len // self.decoding.blocks_for(max_model_len) or 1
        """Mean tokens per block of the longest request, over all groups."""


class _BlockSteps:
    """Lengths beyond which a request needs one more block.

    sizes: for each group, tokens per block and the maximum blocks of a request.
    """

    def __init__(self, sizes: Iterable[tuple[int, int | None]], max_model_len: int) -> None:
        self._max_model_len = max_model_len
        steps = [range(0, max_model_len, size)[:most] for size, most in sizes]
        self._steps = sorted(chain.from_iterable(steps))

    def blocks_for(self, num_tokens: int) -> int:
        return bisect_left(self._steps, num_tokens)

    def room(self, num_blocks: int) -> int:
        """Return the tokens that ``num_blocks`` blocks hold."""
        return self._steps[num_blocks] if num_blocks < len(self._steps) else self._max_model_len


# -- the engine's own record


class Hit(NamedTuple):
    """Part of a request's prompt that the prefix cache holds."""

    num_tokens: int = 0
    """Prompt tokens that need not be computed; fewer than the prompt has."""
    num_held_blocks: int = 0
    """Their blocks that other requests hold, which take no free block."""
    load_s: float = 0.0
    """Predicted time to load those that are only in host memory, seconds."""


MISS = Hit()


class EngineCache(Protocol):
    """An engine's read-only record of its cache blocks: the truth on free and shared ones."""

    @property
    def free(self) -> int:
        """Return the number of blocks without a holder, including those in the prefix cache."""
        ...

    @property
    def allocated(self) -> int:
        """Return the number of blocks held; a shared one counts once per holder."""
        ...

    def keeps_to(self, request_id: str, num_blocks: int) -> bool:
        """Return whether a request after its prefill holds at most ``num_blocks``."""
        ...

    def shared_by(self, request_id: str) -> int:
        """Return the number of a request's blocks that other requests also hold."""
        ...

    def num_cached(self, request_id: str, last_found: int) -> int:
        """Return the ``num_tokens`` of ``find``; fast if that is still ``last_found``."""
        ...

    def find(self, request_id: str) -> Hit:
        """Return the cached part of a waiting request's prompt; ``MISS`` for other requests."""
        ...


# -- reservations


class BlockLedger:
    """Blocks reserved for each request: those that it holds and those that it may still take.

    Pages are fungible, so a reservation is only a count. A block holds keys and values of
    ``block_size`` tokens or hidden states of ``hidden_states_per_block`` (None: not supported).

    num_draft_slots: slots that a request needs for drafted tokens, limited by ``max_model_len``.
    cache: the engine's record, if requests may share blocks. Without it, free and reserved blocks
        add up to the pool.
    groups: the groups of layers that draw blocks, of which ``block_size`` is the mean; None for a
        single group that keeps all blocks.
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
        # Until the engine has applied them: blocks that a grant will share, and blocks that a
        # release will not free.
        self._shared: dict[str, int] = {}
        self._num_still_shared = 0

    @property
    def free(self) -> int:
        """Return the number of unreserved blocks."""
        if self._cache is None:
            return self.num_blocks - self._num_reserved
        num_to_allocate = self._num_reserved - self._cache.allocated
        num_to_share = sum(self._shared.values()) - self._num_still_shared
        return self._cache.free + num_to_share - num_to_allocate

    @property
    def is_grouped(self) -> bool:
        """Return whether several groups draw blocks, so that tokens per block vary."""
        return self._groups is not None

    def blocks_for(self, num_tokens: int) -> int:
        """Return the blocks of a new request, including those for drafted tokens."""
        num_slots = self._with_drafts(num_tokens)
        if self._groups is not None:
            return self._groups.prefilling.blocks_for(num_slots)
        return -(-num_slots // self.block_size)

    def _with_drafts(self, num_tokens: int) -> int:
        """Return the slots for a request's tokens and possible drafted ones."""
        return num_tokens + max(0, min(self._num_draft_slots, self._max_model_len - num_tokens))

    def mean_blocks_for(self, num_tokens: int) -> int:
        """Return the mean number of blocks for tokens of several requests."""
        return -(-num_tokens // self.block_size)

    def missing(self, request_id: str, num_tokens: int) -> int:
        """Return the additional blocks that a request needs; at most 0 if it has enough."""
        if self._groups is not None and request_id in self._prefilled:
            needed = self._groups.decoding.blocks_for(self._with_drafts(num_tokens))
        else:
            needed = self.blocks_for(num_tokens)
        return needed - self.held_by(request_id)

    def hidden_blocks(self, num_blocks: int) -> int:
        """Return the blocks for the tokens of ``num_blocks`` KV blocks as hidden states."""
        return -(-num_blocks * self.block_size // self._hidden_states_per_block)

    def mean_hidden_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._hidden_states_per_block)

    def held_by(self, request_id: str) -> int:
        return self._held.get(request_id, 0)

    def slots(self, cache: CacheKind) -> int:
        """Return the tokens per block."""
        return self._hidden_states_per_block if cache is CacheKind.HIDDEN else self.block_size

    def room(self, request_id: str, cache: CacheKind = CacheKind.KV, num_more: int = 0) -> int:
        """Return the tokens that a request's blocks and ``num_more`` others hold, without drafted
        ones."""
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
        """Reserve ``num_blocks`` more blocks, including ``num_shared`` that others hold."""
        free = self.free
        assert 0 <= num_shared < num_blocks <= free + num_shared, (
            f"{num_blocks} blocks granted, {num_shared} of them shared, of {free} free"
        )
        self._num_reserved += num_blocks
        if num_shared:
            self._shared[request_id] = num_shared
        self._held[request_id] = self.held_by(request_id) + num_blocks

    def transfer(self, giver: str, taker: str, num_blocks: int) -> None:
        held = self.held_by(giver)
        assert 0 <= num_blocks <= held, f"{giver} holds {held} blocks and gives {num_blocks}"
        self._held[giver] = held - num_blocks
        self._held[taker] = self.held_by(taker) + num_blocks

    def give_back(self, request_id: str) -> bool:
        """Take back the blocks needed only during the prefill; return whether the engine has freed
        them."""
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
        """Cancel a request's reservation."""
        self._prefilled.discard(request_id)
        self._num_reserved -= self._held.pop(request_id, 0)
        self._shared.pop(request_id, None)
        if self._cache is not None:
            self._num_still_shared += self._cache.shared_by(request_id)

    def read_again(self) -> None:
        """Synchronize with the engine's record, which now includes all releases, and the grants of
        requests that have begun."""
        self._num_still_shared = 0
        if self._cache is not None and self._shared:
            hits = {name: self._cache.find(name).num_held_blocks for name in self._shared}
            self._shared = {name: num_held for name, num_held in hits.items() if num_held}

    def check(self) -> None:
        """Assert that the counts agree."""
        assert self._num_reserved == sum(self._held.values())
        assert 0 <= self.free <= self.num_blocks
        assert self._held or self.free == self.num_blocks, "blocks are lost"
