"""Specification and allocation of pages with keys and values or hidden states."""

from dataclasses import dataclass, replace
from typing import Any, Self, cast

from vllm.config import VllmConfig
from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, replace_as
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry


@dataclass(frozen=True, kw_only=True)
class HybridSpec(FullAttentionSpec):
    """vLLM's specification of full attention, with hidden states."""

    hidden_size: int = 0
    """Elements of a token's hidden state that one rank keeps; 0 means all."""

    @classmethod
    def of(cls, spec: FullAttentionSpec, hidden_size: int) -> Self:
        return replace_as(spec, cls, hidden_size=hidden_size)

    @property
    def hidden_states_per_block(self) -> int:
        """Return the number of hidden states that a page holds."""
        kv_size = self.num_kv_heads * (self.head_size + self.head_size_v)
        return self.block_size * kv_size // self.hidden_size

    def max_num_blocks_per_req(self, vllm_config: VllmConfig, max_len: int) -> int:
        """Return the maximum pages of a request with either cache; with GQA, hidden states may need
        more than keys and values."""
        return cdiv(max_len, min(self.block_size, self.hidden_states_per_block))

    @classmethod
    def merge(cls, specs: list[Self]) -> Self:  # type: ignore[override]
        return replace(super().merge(specs), hidden_size=specs[0].hidden_size)


class HybridBlocks(FullAttentionManager):
    """vLLM's manager of pages. A request with hidden states counts as the number of tokens whose
    keys and values need as many pages; it keeps its kind of cache until its pages are freed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hidden_states_per_block = cast(HybridSpec, self.kv_cache_spec).hidden_states_per_block
        self._hidden: set[str] = set()

    def set_hidden(self, request_id: str, hidden: bool) -> None:
        """Set a request's kind of cache. Raises ValueError if it has pages of the other kind."""
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
            return cdiv(num_tokens, self.hidden_states_per_block) * self.block_size
        return num_tokens


KVCacheSpecRegistry.register(HybridSpec, HybridBlocks, FullAttentionSpec)
