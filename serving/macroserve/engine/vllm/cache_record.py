"""vLLM's record of its cache blocks is the scheduler's truth (``core.scheduler.engine_cache``)."""

from collections.abc import Mapping

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import Request

from macroserve.core.scheduler.engine_cache import MISS, Hit


class VllmCacheRecord:
    """The record is read from vLLM's KV cache manager after vLLM has changed it.

    requests: vLLM's requests by id.

    Attributes:
        free: blocks that no request has; some of them are in the prefix cache.
        allocated: blocks that requests have; a shared one counts for each of them.
    """

    def __init__(self, manager: KVCacheManager, requests: Mapping[str, Request]) -> None:
        self._manager = manager
        self._requests = requests
        self._block_size = manager.coordinator.single_type_managers[0].block_size
        self.free = self.allocated = 0
        self.refresh()

    def refresh(self) -> None:
        """Read the counts again: vLLM has allocated or freed blocks."""
        self.free = self._manager.block_pool.get_num_free_blocks()
        managers = self._manager.coordinator.single_type_managers
        self.allocated = sum([sum(map(len, m.req_to_blocks.values())) for m in managers])

    def shared_by(self, request_id: str) -> int:
        managers = self._manager.coordinator.single_type_managers
        blocks = [m.req_to_blocks.get(request_id, ()) for m in managers]
        return sum([block.ref_cnt > 1 for group in blocks for block in group])

    def num_cached(self, request_id: str, last_found: int) -> int:
        request = self._requests[request_id]
        # A group of its own may have dropped what another one has.
        if len(self._manager.coordinator.single_type_managers) == 1:
            pool, hashes = self._manager.block_pool, request.block_hashes
            index = last_found // self._block_size
            is_there = not index or pool.get_cached_block(hashes[index - 1], [0])
            if is_there and (index == len(hashes) or not pool.get_cached_block(hashes[index], [0])):
                return last_found
        return self.find(request_id).num_tokens

    def find(self, request_id: str) -> Hit:
        request = self._requests[request_id]
        if request.num_computed_tokens or not self._manager.enable_caching:
            return MISS
        found, num_tokens, _ = self._manager.get_computed_blocks(request)
        if not num_tokens:
            return MISS
        return Hit(num_tokens, sum([b.ref_cnt > 0 for group in found.blocks for b in group]))
