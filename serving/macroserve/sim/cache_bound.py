"""Bound on the hits of prefix caches: those of one cache in place of all instances'."""

from collections import OrderedDict

from macroserve.sim.device import SimRequest
from macroserve.sim.prefixes import block_spans


class CacheBound:
    """One cache as large as all instances' together, which takes requests in order of arrival.

    A request's blocks are cached at once, in a conversation with those of its response. As in
    ``core.block_pool``, full blocks are kept, the least recently used ones are dropped first, the
    last ones of a request before its others, and a prompt's last token is always computed. Cache
    blocks that end in one block of the load are counted together, so that a request costs little.

    num_blocks: blocks that the cache holds.
    block_size: tokens of a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._held: OrderedDict[int, int] = OrderedDict()
        """Number of cache blocks by the hash of a block of the load, least recently used first."""
        self._num_held = 0
        self._num_tokens = 0
        self._num_found = 0

    @property
    def hit_ratio(self) -> float:
        """Return the share of the prompt tokens so far that were cached."""
        return self._num_found / self._num_tokens if self._num_tokens else 0.0

    def take(self, record: SimRequest) -> None:
        """Count the cached tokens of a prompt, and keep the request's blocks."""
        num_tokens = record.request.num_prompt_tokens
        # Keys and values of a response's last token are never computed.
        num_computed = num_tokens + record.num_output - 1 if record.is_open else num_tokens
        spans = block_spans(
            num_computed, record.block_ids, record.block_tokens, self._block_size, record.is_open
        )
        # A prompt held in part is held from its beginning, as the end is dropped first.
        num_held = sum([min(num, self._held.get(key, 0)) for key, num in spans])
        num_found = min(num_held, (num_tokens - 1) // self._block_size)
        self._num_tokens += num_tokens
        self._num_found += num_found * self._block_size
        for key, num in reversed(spans):
            held = self._held.pop(key, 0)
            self._held[key] = max(held, num)
            self._num_held += self._held[key] - held
        self._drop()

    def _drop(self) -> None:
        """Drop the blocks beyond the size of the cache."""
        while self._num_held > self._num_blocks:
            key, num = self._held.popitem(last=False)
            self._num_held -= num
            if self._num_held < self._num_blocks:
                self._held[key] = self._num_blocks - self._num_held
                self._held.move_to_end(key, last=False)
                self._num_held = self._num_blocks
