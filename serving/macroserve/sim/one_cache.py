"""A cache in the place of all instances' prefix caches, to compare what they find with."""

from collections import OrderedDict

from macroserve.sim.device import SimRequest
from macroserve.sim.prefixes import block_spans


class OneCache:
    """The cache is as large as the instances' together, and takes requests in order of arrival.

    A request's blocks are there at once, in a conversation with those of its response. As in
    ``core.block_pool``, full blocks are kept, the least recently used ones go first, the last ones
    of a request before its others, and a prompt's last token is always computed. Cache blocks that
    end in one block of the load are used together, so that a request costs little.

    num_blocks: blocks that the cache holds.
    block_size: tokens of a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._held: OrderedDict[int, int] = OrderedDict()
        """Number of cache blocks by the hash of a load's block, the least recently used first."""
        self._num_held = 0
        self._num_tokens = 0
        self._num_found = 0

    @property
    def hit_ratio(self) -> float:
        """Return the share of the prompt tokens so far that the cache had."""
        return self._num_found / self._num_tokens if self._num_tokens else 0.0

    def take(self, record: SimRequest) -> None:
        """Count what the cache has of a prompt, and keep the request's blocks."""
        num_tokens = record.request.num_prompt_tokens
        # Of a response's last token, keys and values are never computed.
        num_computed = num_tokens + record.num_output - 1 if record.is_open else num_tokens
        spans = block_spans(
            num_computed, record.block_ids, record.block_tokens, self._block_size, record.is_open
        )
        # Of a prompt that is held in part, that is the beginning: the end is dropped first.
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
        """Drop the blocks that are too many."""
        while self._num_held > self._num_blocks:
            key, num = self._held.popitem(last=False)
            self._num_held -= num
            if self._num_held < self._num_blocks:
                self._held[key] = self._num_blocks - self._num_held
                self._held.move_to_end(key, last=False)
                self._num_held = self._num_blocks
