"""The hidden states of one layer on one rank."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
)

from macroserve.engine.vllm.hybrid.absorbed import AbsorbedAttention
from macroserve.engine.vllm.hybrid.metadata import DirectContext, Rebuilt
from macroserve.engine.vllm.hybrid.projection import KvProjection
from macroserve.kernels.pool import hidden_view

Direct = Callable[[torch.Tensor, torch.Tensor, DirectContext], torch.Tensor]
"""Attention on hidden states, called like ``AbsorbedAttention``."""

Rebuild = Callable[[torch.Tensor, Rebuilt, torch.Tensor, torch.Tensor], None]
"""Function that recomputes keys and values from hidden states, [num_pages, capacity, hidden_size],
into paged keys and paged values, each [num_pages, block_size, num_kv_heads, head_size]."""

Scatter = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Function that writes hidden states, [num_tokens, hidden_size / ranks], to their slots in a
layer's pages."""


def has_kernels(weight: torch.Tensor) -> bool:
    return weight.is_cuda


class HiddenLayer:
    """Reads and writes of the hidden states of one attention block.

    Under tensor parallelism every rank keeps its part of each hidden state, which saves the same
    share of memory as on one device, and gathers the other parts to recompute keys and values.

    Attributes:
        x: last input of the attention block, [num_tokens, hidden_size].
        direct: decode attention on hidden states; None if keys and values must be recomputed.
        fused: recomputes keys and values by one kernel; None without kernels that support the
            rotary embedding.
    """

    def __init__(self, block: Any, num_kv_heads: int, head_size: int) -> None:
        self.project = KvProjection(block, num_kv_heads, head_size)
        self._num_ranks = get_tensor_model_parallel_world_size()
        self._share = block.qkv_proj.input_size // self._num_ranks
        self.direct = _direct(self.project, block.attn.impl.scale, self._num_ranks)
        self.fused = _fused(self.project)
        self._scatter = _scatter_of(self.project.key)
        self._begin = self._share * get_tensor_model_parallel_rank()
        self.x = torch.empty(0)
        block.register_forward_pre_hook(self._take, with_kwargs=True)

    def write(self, cache: torch.Tensor, x: torch.Tensor, slots: torch.Tensor) -> None:
        """Write hidden states to their slots.

        cache: the layer's pages in vLLM's layout.
        x: [num_tokens, hidden_size].
        """
        mine = x[:, self._begin : self._begin + self._share]
        self._scatter(mine, self.pages(cache), slots)

    def read(self, cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return the hidden states at ``slots``, [num_tokens, hidden_size]."""
        pages = self.pages(cache)
        mine = pages[slots // pages.shape[1], slots % pages.shape[1]]
        return tensor_model_parallel_all_gather(mine) if self._num_ranks > 1 else mine

    def rebuild(self, cache: torch.Tensor, tokens: Rebuilt, pages: torch.Tensor) -> None:
        """Recompute keys and values of ``tokens`` by the fused kernel.

        pages: in the layout of GPUs, [num_pages, num_kv_heads, block_size, 2 * head_size].
        """
        assert self.fused
        keys, values = pages.transpose(1, 2).chunk(2, dim=-1)
        states = self.pages(cache)
        if self._num_ranks > 1:
            states = self.read(cache, tokens.read)[:, None]
            tokens = replace(tokens, read=torch.arange(len(states), device=states.device))
        self.fused(states, tokens, keys, values)

    def pages(self, cache: torch.Tensor) -> torch.Tensor:
        """Return the cache as [num_pages, hidden_states_per_block, hidden_size / ranks]; a page's
        elements are contiguous in every layout of keys and values."""
        page = (cache.shape[0], cache[0].numel())
        return hidden_view(cache.as_strided(page, (cache.stride(0), 1)), self._share)

    def _take(self, block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the hidden states, the last argument of every supported attention block."""
        self.x = kwargs["hidden_states"] if "hidden_states" in kwargs else args[-1]


def _direct(project: KvProjection, scale: float, num_ranks: int) -> Direct | None:
    if has_kernels(project.key) and num_ranks == 1:
        # Triton is installed only on machines with a GPU.
        from macroserve.engine.vllm.hybrid.triton_attention import TritonAttention, knows

        if knows(project.rotary):
            return TritonAttention(project, scale)
    return AbsorbedAttention(project, scale) if project.rotary is None else None


def _fused(project: KvProjection) -> Rebuild | None:
    if not has_kernels(project.key):
        return None
    from macroserve.engine.vllm.hybrid.triton_attention import knows, of_kernels
    from macroserve.kernels.rebuild_kv import rebuild_kv

    if not knows(project.rotary):
        return None
    projection = of_kernels(project)

    def rebuild(
        states: torch.Tensor, tokens: Rebuilt, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        rebuild_kv(states, tokens.read, tokens.positions, projection, keys, values, tokens.slots)

    return rebuild


def _scatter_of(weight: torch.Tensor) -> Scatter:
    if not has_kernels(weight):
        return _scatter
    from macroserve.kernels.write_hidden import write_hidden

    return write_hidden


def _scatter(x: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    pages[slots // pages.shape[1], slots % pages.shape[1]] = x
