"""vLLM's attention for batches in which some requests keep hidden states.

Their keys and values are recomputed in every layer and step, in pages that are reused by the next
layer, from which vLLM's attention reads them. Other requests are unaffected.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from vllm.v1.attention.backend import AttentionBackend, CommonAttentionMetadata

from macroserve.core.hybrid_cache import BACKENDS
from macroserve.engine.vllm.hybrid.layer import HiddenLayer
from macroserve.engine.vllm.hybrid.metadata import (
    DirectPart,
    Part,
    Rebuilt,
    RebuiltPart,
    direct_context,
    part_of,
    query_lens_of,
    rebuilt_context,
    seq_lens_of,
)
from macroserve.engine.vllm.hybrid.requests import HiddenRequests
from macroserve.engine.vllm.hybrid.scratch_pages import Scratch


@dataclass(frozen=True, slots=True)
class HybridMetadata:
    """The parts of a batch by kind of cache."""

    scratch: Scratch
    """Pages for recomputed keys and values."""
    kv: Part | None = None
    """Requests with keys and values."""
    rebuilt: tuple[RebuiltPart, ...] = ()
    """Requests whose keys and values are recomputed, in groups that fit the scratch pages."""
    direct: DirectPart | None = None
    """Requests whose hidden states attention reads directly."""


class _Builder:
    """Mixin for a backend's builder of metadata."""

    def __init__(self, spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(spec, layer_names, vllm_config, device)  # type: ignore[call-arg]
        layers = vllm_config.compilation_config.static_forward_context
        self._requests: HiddenRequests = layers[layer_names[0]].impl.requests
        self._has_direct = layers[layer_names[0]].impl.hidden.direct is not None
        self._spec = spec
        self._scratch: Scratch = layers[layer_names[0]].impl.scratch

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> HybridMetadata:
        common = common_attn_metadata  # a keyword argument in vLLM 0.31
        build = super().build  # type: ignore[misc]
        # The batch is split by data on the host, without waiting for the GPU.
        is_hidden = self._requests.rows(common.num_reqs)
        if not is_hidden.any():
            everything = slice(0, common.num_actual_tokens)
            metadata = build(common_prefix_len, common, fast_build)
            part = Part(everything, metadata, common.slot_mapping[everything])
            return HybridMetadata(self._scratch, kv=part)
        is_direct = is_hidden & (query_lens_of(common) == 1) & self._has_direct
        kv = direct = None
        if len(rows := (~is_hidden).nonzero().flatten()):
            tokens, some = part_of(common, rows)
            kv = Part(tokens, build(0, some, fast_build), some.slot_mapping)
        rows = (is_hidden & ~is_direct).nonzero().flatten()
        rebuilt = tuple(
            self._rebuilt(common, share, build)
            for share in self._scratch.in_turn(rows, seq_lens_of(common)[rows])
        )
        if len(rows := is_direct.nonzero().flatten()):
            tokens, some = part_of(common, rows)
            direct = DirectPart(tokens, direct_context(some, self._spec.hidden_states_per_block))
        return HybridMetadata(self._scratch, kv, rebuilt, direct)

    def _rebuilt(
        self, common: CommonAttentionMetadata, rows: torch.Tensor, build: Callable[..., Any]
    ) -> RebuiltPart:
        tokens, some = part_of(common, rows)
        context = rebuilt_context(some, self._spec.hidden_states_per_block, self._spec.block_size)
        some = some.replace(block_table_tensor=context.block_table, slot_mapping=context.made)
        return RebuiltPart(tokens, build(0, some), context.made, context)


class _Impl:
    """Mixin for a backend's attention. ``HybridWorker`` sets the attributes."""

    hidden: HiddenLayer
    requests: HiddenRequests
    scratch: Scratch
    """Pages for recomputed keys and values."""
    has_gpu_layout: bool
    """Whether pages have the layout of GPUs, which the fused kernel writes."""

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: HybridMetadata | None,
        output: torch.Tensor,
        **scales: Any,
    ) -> torch.Tensor:
        """Attend as in vLLM: query, key, value and output are [num_tokens, heads, head_size]."""
        keep, attend = super().do_kv_cache_update, super().forward  # type: ignore[misc]
        if attn_metadata is None:
            return attend(layer, query, key, value, kv_cache, None, output, **scales)

        def serve(part: Part, pages: torch.Tensor) -> None:
            mine, out = part.tokens, output[part.tokens]
            keep(layer, key[mine], value[mine], pages, part.slots)
            attend(layer, query[mine], key[mine], value[mine], pages, part.metadata, out, **scales)
            if not isinstance(mine, slice):  # a slice of the output is written in place
                output[mine] = out

        if part := attn_metadata.kv:
            serve(part, kv_cache)
        for part in attn_metadata.rebuilt:
            scratch = attn_metadata.scratch.pages(kv_cache)
            before = part.context.before
            if len(before.slots):  # none for new prompts, which not every gather accepts
                self.rebuild(layer, kv_cache, before, scratch)
            serve(part, scratch)
            self.hidden.write(kv_cache, self.hidden.x[part.tokens], part.context.written)
        if (direct := attn_metadata.direct) and self.hidden.direct:
            self.hidden.write(kv_cache, self.hidden.x[direct.tokens], direct.context.written)
            pages = self.hidden.pages(kv_cache)
            output[direct.tokens] = self.hidden.direct(query[direct.tokens], pages, direct.context)
        return output

    def rebuild(
        self, layer: Any, kv_cache: torch.Tensor, tokens: Rebuilt, pages: torch.Tensor
    ) -> None:
        """Recompute the keys and values of ``tokens`` into ``pages``."""
        if self.has_gpu_layout and self.hidden.fused:
            self.hidden.rebuild(kv_cache, tokens, pages)
            return
        x = self.hidden.read(kv_cache, tokens.read)
        key, value = self.hidden.project(x, tokens.positions)
        super().do_kv_cache_update(layer, key, value, pages, tokens.slots)  # type: ignore[misc]


@cache
def hybrid(backend: type[AttentionBackend]) -> type[AttentionBackend]:
    """Return the backend extended to batches with both kinds of cache. Raises ValueError for an
    unsupported backend."""
    if backend.get_name() not in BACKENDS:
        raise ValueError(
            f"the hybrid cache does not support the attention backend {backend.get_name()}"
        )
    layout = {"has_gpu_layout": backend.get_name() != "CPU_ATTN"}
    impl = type("HybridImpl", (_Impl, backend.get_impl_cls()), layout)
    builder = type("HybridBuilder", (_Builder, backend.get_builder_cls()), {})
    return type(
        f"Hybrid{backend.__name__}",
        (backend,),
        {
            "forward_includes_kv_cache_update": True,
            "get_impl_cls": staticmethod(lambda: impl),
            "get_builder_cls": staticmethod(lambda: builder),
        },
    )
