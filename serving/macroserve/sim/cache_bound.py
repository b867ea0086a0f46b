"""Upper bound on prefix cache hits: those of a single cache instead of one per instance."""

from collections import OrderedDict

from macroserve.sim.device import SimRequest
from macroserve.sim.prefixes import block_spans


class CacheBound:
    """One cache as large as those of all instances together, for requests in order of arrival.

    A request's blocks are cached at once, in a conversation with those of its response. Eviction is
    as in ``core.block_pool``, and a prompt's last token is always computed. For speed, cache blocks
    that end in the same block of the load are counted together.

    num_blocks: capacity of the cache, blocks of ``block_size`` tokens.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._held: OrderedDict[int, int] = OrderedDict()
        """Number of cache blocks by hash of a block of the load, least recently used first."""
        self._num_held = 0
        self._num_tokens = 0
        self._num_found = 0

    @property
    def hit_ratio(self) -> float:
        """Return the share of the prompt tokens so far that were cached."""
        return self._num_found / self._num_tokens if self._num_tokens else 0.0

    def take(self, record: SimRequest) -> None:
        """Count the cached tokens of a prompt, and cache the request's blocks."""
        num_tokens = record.request.num_prompt_tokens
        # Keys and values of a response's last token are never computed.
        num_computed = num_tokens + record.num_output - 1 if record.is_open else num_tokens
        spans = block_spans(
            num_computed, record.block_ids, record.block_tokens, self._block_size, record.is_open
        )
        # The cached part of a prompt is a prefix, as its end is evicted first.
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
        while self._num_held > self._num_blocks:
            key, num = self._held.popitem(last=False)
            self._num_held -= num
            if self._num_held < self._num_blocks:
                self._held[key] = self._num_blocks - self._num_held
                self._held.move_to_end(key, last=False)
                self._num_held = self._num_blocks
