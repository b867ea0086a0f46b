"""vLLM's cache blocks as the scheduler sees them (``core.scheduler.blocks``)."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, SlidingWindowSpec
from vllm.v1.request import Request

from macroserve.core.scheduler.blocks import MISS, Hit
from macroserve.engine.vllm.host_cache import HostCache


class VllmCacheRecord:
    """A view of vLLM's KV cache manager, to be refreshed when vLLM has changed it.

    requests: vLLM's requests by id.
    max_decoding_tokens: maximum tokens in flight of a decoding request.
    host: the cache in host memory, if any.
    deferred: blocks that vLLM frees after the steps in flight, which may write to them, each with
        the last of these steps.

    Attributes:
        free: blocks of no request, including cached and deferred ones.
        allocated: blocks of requests; a shared one counts for each of them.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        requests: Mapping[str, Request],
        max_decoding_tokens: int = 1,
        host: HostCache | None = None,
        deferred: Collection[tuple[int, list[KVCacheBlock]]] = (),
    ) -> None:
        self._manager = manager
        self._requests = requests
        self._max_decoding_tokens = max_decoding_tokens
        self._host = host
        self._deferred = deferred
        managers = manager.coordinator.single_type_managers
        self._groups = tuple(map(_Group, managers))
        # With several groups, one may have dropped a block that another one still has.
        is_single = len(managers) == 1 and self._groups[0].keeps_all
        self._block_size = managers[0].block_size if is_single else None
        self.free = self.allocated = 0
        self.refresh()

    def refresh(self) -> None:
        """Read the counts again, after vLLM has allocated or freed blocks."""
        self.free = self._manager.block_pool.get_num_free_blocks()
        if self._deferred:
            deferred = [b.block_id for _, blocks in self._deferred for b in blocks]
            blocks = self._manager.block_pool.blocks
            holds = Counter(deferred).items()
            self.free += sum([blocks[block_id].ref_cnt == held for block_id, held in holds])
        self.allocated = sum([group.num_allocated() for group in self._groups])

    def keeps_to(self, request_id: str, num_blocks: int) -> bool:
        # vLLM keeps the blocks that a chunk in flight reads.
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
            if index == len(hashes) or not pool.get_cached_block(hashes[index], [0]):
                start = last_found if is_there else last_found - self._block_size
                num_hosted = self._host.num_beyond(request, start) if self._host else 0
                if start + num_hosted == last_found:
                    return last_found
        return self.find(request_id).num_tokens

    def find(self, request_id: str) -> Hit:
        request = self._requests.get(request_id)
        if request is None or request.num_computed_tokens or not self._manager.enable_caching:
            return MISS
        found, num_tokens, _ = self._manager.get_computed_blocks(request)
        num_held = sum([b.ref_cnt > 0 and not b.is_null for group in found.blocks for b in group])
        if self._host is not None and (num_more := self._host.num_beyond(request, num_tokens)):
            # A prompt's last token is computed even if its block is loaded.
            num_tokens = min(num_tokens + num_more, request.num_tokens - 1)
            return Hit(num_tokens, num_held, self._host.load_s(num_more))
        return Hit(num_tokens, num_held) if num_tokens else MISS

    def num_loading(self, request: Request) -> int:
        """Return the tokens of a request that are being loaded: vLLM sets a block's hash when it is
        loaded."""
        blocks = self._manager.get_blocks(request.request_id).blocks[0]
        num_tokens = request.num_computed_tokens
        num_named = sum([block.block_hash is not None for block in blocks])
        return max(
            0, num_tokens - num_named * self._manager.coordinator.single_type_managers[0].block_size
        )


class _Group:
    """The blocks of one of vLLM's managers, which replaces dropped blocks by the null block.

    Attributes:
        keeps_all: whether it never drops blocks.
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
