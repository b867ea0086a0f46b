"""Pages for requests that keep hidden states, from the same pool as all others."""

from typing import TYPE_CHECKING, Any, cast

from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

if TYPE_CHECKING:
    from macroserve.engine.vllm.hybrid.spec import HybridSpec


class HybridBlocks(FullAttentionManager):
    """vLLM counts a request's tokens; here they become those that as many pages would hold of keys
    and values. A request has one kind of cache from its first page until its last is freed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hidden_slots = cast("HybridSpec", self.kv_cache_spec).hidden_slots
        self._hidden: set[str] = set()

    def set_hidden(self, request_id: str, hidden: bool) -> None:
        """Which cache it gets. Raises ValueError where it holds pages of the other kind."""
        if hidden == self.is_hidden(request_id):
            return
        if self.req_to_blocks.get(request_id):
            raise ValueError(f"request {request_id} holds pages: its cache cannot change")
        (self._hidden.add if hidden else self._hidden.remove)(request_id)

    def is_hidden(self, request_id: str) -> bool:
        return request_id in self._hidden

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, *args: Any, **kwargs: Any
    ) -> int:
        num_tokens = self._as_kv(request_id, num_tokens)
        return super().get_num_blocks_to_allocate(request_id, num_tokens, *args, **kwargs)

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> list[KVCacheBlock]:
        num_tokens = self._as_kv(request_id, num_tokens)
        return super().allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        self._hidden.discard(request_id)
        return super().pop_blocks_for_free(request_id)

    def _as_kv(self, request_id: str, num_tokens: int) -> int:
        if self.is_hidden(request_id):
            return cdiv(num_tokens, self.hidden_slots) * self.block_size
        return num_tokens
