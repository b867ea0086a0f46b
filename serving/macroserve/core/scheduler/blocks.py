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

    Full attention keeps the blocks of all tokens. A sliding window drops the blocks that it has
    passed, and a recurrent layer keeps only its state. All groups draw from one pool.
    """

    block_size: int
    """Tokens per block."""
    max_blocks: int | None = None
    """Maximum blocks of a request at a time; None if it keeps all."""
    max_decoding_blocks: int | None = None
    """Maximum once its prompt is computed: a window's worth of blocks."""


class BlockGroups:
    """All groups of a model; they give the blocks of a request by its tokens."""

    def __init__(self, groups: Iterable[BlockGroup], max_model_len: int) -> None:
        groups = tuple(groups)
        self.prefilling = _BlockSteps([(g.block_size, g.max_blocks) for g in groups], max_model_len)
        """Blocks of a request while its prompt is computed."""
        self.decoding = _BlockSteps(
            [(g.block_size, g.max_decoding_blocks) for g in groups], max_model_len
        )
        """Blocks of a request whose prompt is computed; never more than ``prefilling``."""
        self.block_size = max_model_len // self.decoding.blocks_for(max_model_len) or 1
        """Tokens per block of the longest request, over all groups."""


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
        """Return the number of tokens that ``num_blocks`` blocks hold."""
        return self._steps[num_blocks] if num_blocks < len(self._steps) else self._max_model_len


# -- the engine's own record


class Hit(NamedTuple):
    """Part of a request's prompt that the prefix cache holds."""

    num_tokens: int = 0
    """Prompt tokens that need not be computed; fewer than the prompt has."""
    num_held_blocks: int = 0
    """Number of their blocks that other requests hold: these take no free block."""
    load_s: float = 0.0
    """Predicted time to load the tokens that only host memory holds, seconds."""


MISS = Hit()


class EngineCache(Protocol):
    """An engine's record of its cache blocks: the truth on free and shared ones.

    Reading it changes nothing.
    """

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
        """Return the tokens that ``find`` would; fast if that is still ``last_found``."""
        ...

    def find(self, request_id: str) -> Hit:
        """Return the cached part of a waiting request's prompt; ``MISS`` for running and ended
        ones."""
        ...


# -- reservations


class BlockLedger:
    """Blocks reserved for each request: those it has, and those it may still take.

    Pages are fungible, so a reservation is only a count. A block holds keys and values of
    ``block_size`` tokens or hidden states of ``hidden_states_per_block``, which is None if no
    hidden states are kept.

    num_draft_slots: slots that a request needs beyond its tokens, for drafted ones, as far as
        ``max_model_len`` allows.
    cache: the engine's record, where requests may share blocks. Without it none are shared, and
        free and reserved blocks add up to the pool.
    groups: the groups of layers that draw blocks; None for a single one that keeps them all.
        With groups, ``block_size`` is a mean.
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
        # Not carried out by the engine yet: blocks that a grant will share, and blocks that a
        # release will not free.
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
        """Return the blocks of a request that begins, including those for drafted tokens."""
        num_slots = self._with_drafts(num_tokens)
        if self._groups is not None:
            return self._groups.prefilling.blocks_for(num_slots)
        return -(-num_slots // self.block_size)

    def _with_drafts(self, num_tokens: int) -> int:
        """Return the slots for a request's tokens and for the drafted ones that may follow."""
        return num_tokens + max(0, min(self._num_draft_slots, self._max_model_len - num_tokens))

    def mean_blocks_for(self, num_tokens: int) -> int:
        """Return the mean number of blocks for that many tokens of several requests."""
        return -(-num_tokens // self.block_size)

    def missing(self, request_id: str, num_tokens: int) -> int:
        """Return the blocks that a request needs beyond its own; not above 0 if it has enough."""
        if self._groups is not None and request_id in self._prefilled:
            needed = self._groups.decoding.blocks_for(self._with_drafts(num_tokens))
        else:
            needed = self.blocks_for(num_tokens)
        return needed - self.held_by(request_id)

    def hidden_blocks(self, num_blocks: int) -> int:
        """Return the blocks that hold the tokens of ``num_blocks`` KV blocks as hidden states."""
        return -(-num_blocks * self.block_size // self._hidden_states_per_block)

    def mean_hidden_blocks_for(self, num_tokens: int) -> int:
        """Return the mean number of blocks for hidden states of that many tokens."""
        return -(-num_tokens // self._hidden_states_per_block)

    def held_by(self, request_id: str) -> int:
        return self._held.get(request_id, 0)

    def slots(self, cache: CacheKind) -> int:
        """Return the tokens per block in a cache of that kind."""
        return self._hidden_states_per_block if cache is CacheKind.HIDDEN else self.block_size

    def room(self, request_id: str, cache: CacheKind = CacheKind.KV, num_more: int = 0) -> int:
        """Return the tokens that a request's blocks and ``num_more`` others hold, drafted ones
        excluded."""
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
        """Take back the blocks that a request needed only for its prompt, once the engine has freed
        them; return whether it has."""
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
        """Catch up with the engine's record, which shows all releases, and a grant once the request
        has begun."""
        self._num_still_shared = 0
        if self._cache is not None and self._shared:
            hits = {name: self._cache.find(name).num_held_blocks for name in self._shared}
            self._shared = {name: num_held for name, num_held in hits.items() if num_held}

    def check(self) -> None:
        """Assert that the counts agree."""
        assert self._num_reserved == sum(self._held.values())
        assert 0 <= self.free <= self.num_blocks
        assert self._held or self.free == self.num_blocks, "blocks are lost"
