"""A layer's pages, read as keys and values or as hidden states."""

from dataclasses import dataclass, replace
from typing import Self

from vllm.config import VllmConfig
from vllm.utils.math_utils import cdiv
from vllm.v1.kv_cache_interface import FullAttentionSpec, replace_as
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from macroserve.engine.vllm.hybrid.blocks import HybridBlocks


@dataclass(frozen=True, kw_only=True)
class HybridSpec(FullAttentionSpec):
    """hidden_size: elements of a token's hidden state that one rank keeps; all where it is 0."""

    hidden_size: int = 0

    @classmethod
    def of(cls, spec: FullAttentionSpec, hidden_size: int) -> Self:
        return replace_as(spec, cls, hidden_size=hidden_size)

    @property
    def hidden_slots(self) -> int:
        """Hidden states that a page holds."""
        kv_size = self.num_kv_heads * (self.head_size + self.head_size_v)
        return self.block_size * kv_size // self.hidden_size

    def max_num_blocks_per_req(self, vllm_config: VllmConfig, max_len: int) -> int:
        """With either cache: where keys and values are shared by several heads (GQA), hidden states
        may take more."""
        return cdiv(max_len, min(self.block_size, self.hidden_slots))

    @classmethod
    def merge(cls, specs: list[Self]) -> Self:  # type: ignore[override]
        return replace(super().merge(specs), hidden_size=specs[0].hidden_size)


KVCacheSpecRegistry.register(HybridSpec, HybridBlocks, FullAttentionSpec)
