"""vLLM's record of its cache blocks is the scheduler's truth (``core.scheduler.engine_cache``)."""

from bisect import bisect_left
from collections.abc import Mapping

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, SlidingWindowSpec
from vllm.v1.request import Request

from macroserve.core.scheduler.engine_cache import MISS, Hit


class VllmCacheRecord:
    """The record is read from vLLM's KV cache manager after vLLM has changed it.

    requests: vLLM's requests by id.
    max_decoding_tokens: most tokens of a decoding request that are in flight at a time.

    Attributes:
        free: blocks that no request has; some of them are in the prefix cache.
        allocated: blocks that requests have; a shared one counts for each of them.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        requests: Mapping[str, Request],
        max_decoding_tokens: int = 1,
    ) -> None:
        self._manager = manager
        self._requests = requests
        self._max_decoding_tokens = max_decoding_tokens
        managers = manager.coordinator.single_type_managers
        self._groups = tuple(map(_Group, managers))
        # Of several groups, one may have dropped what another one has.
        is_single = len(managers) == 1 and self._groups[0].keeps_all
        self._block_size = managers[0].block_size if is_single else None
        self.free = self.allocated = 0
        self.refresh()

    def refresh(self) -> None:
        """Read the counts again: vLLM has allocated or freed blocks."""
        self.free = self._manager.block_pool.get_num_free_blocks()
        self.allocated = sum([group.num_allocated() for group in self._groups])

    def keeps_to(self, request_id: str, num_blocks: int) -> bool:
        # While a piece of its prompt is in flight, vLLM keeps the blocks that the piece reads.
        if self._requests[request_id].num_in_flight_tokens > self._max_decoding_tokens:
            return False
        return sum([group.num_allocated_to(request_id) for group in self._groups]) <= num_blocks

    def shared_by(self, request_id: str) -> int:
        return sum([group.num_shared_by(request_id) for group in self._groups])

    def num_cached(self, request_id: str, last_found: int) -> int:
        request = self._requests[request_id]
        if self._block_size is not None:
            pool, hashes = self._manager.block_pool, request.block_hashes
            index = last_found // self._block_size
            is_there = not index or pool.get_cached_block(hashes[index - 1], [0])
            if is_there and (index == len(hashes) or not pool.get_cached_block(hashes[index], [0])):
                return last_found
        return self.find(request_id).num_tokens

    def find(self, request_id: str) -> Hit:
        request = self._requests.get(request_id)
        if request is None or request.num_computed_tokens or not self._manager.enable_caching:
            return MISS
        found, num_tokens, _ = self._manager.get_computed_blocks(request)
        if not num_tokens:
            return MISS
        held = [b.ref_cnt > 0 and not b.is_null for group in found.blocks for b in group]
        return Hit(num_tokens, sum(held))


class _Group:
    """The group reads the blocks of one of vLLM's managers, which puts a null block where it has
    dropped one.

    Attributes:
        keeps_all: Whether it never does.
    """

    def __init__(self, manager: SingleTypeKVCacheManager) -> None:
        self._blocks = manager.req_to_blocks
        self.keeps_all = (
            isinstance(manager, FullAttentionManager)
            and type(manager).remove_skipped_blocks
            is SingleTypeKVCacheManager.remove_skipped_blocks
        )
        spec = manager.kv_cache_spec
        self._drops_first = isinstance(spec, SlidingWindowSpec | ChunkedLocalAttentionSpec)

    def num_allocated(self) -> int:
        if self.keeps_all:
            return sum(map(len, self._blocks.values()))
        return sum(map(self._num_real, self._blocks.values()))

    def num_allocated_to(self, request_id: str) -> int:
        return self._num_real(self._blocks.get(request_id, []))

    def num_shared_by(self, request_id: str) -> int:
        blocks = self._blocks.get(request_id, ())
        return sum([block.ref_cnt > 1 and not block.is_null for block in blocks])

    def _num_real(self, blocks: list[KVCacheBlock]) -> int:
        if self.keeps_all:
            return len(blocks)
        if self._drops_first:
            return len(blocks) - bisect_left(blocks, True, key=_is_real)
        return sum(map(_is_real, blocks))


def _is_real(block: KVCacheBlock) -> bool:
    return not block.is_null
