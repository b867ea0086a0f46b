"""The hidden states of one layer, on one rank."""

from collections.abc import Callable
from typing import Any

import torch
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
)

from macroserve.engine.vllm.hybrid.absorbed import AbsorbedAttention
from macroserve.engine.vllm.hybrid.metadata import DirectContext
from macroserve.engine.vllm.hybrid.projection import KvProjection
from macroserve.kernels.pool import hidden_view

Direct = Callable[[torch.Tensor, torch.Tensor, DirectContext], torch.Tensor]
"""As ``AbsorbedAttention``."""

Scatter = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Hidden states, [num_tokens, hidden_size / ranks], into a layer's pages at their slots."""


def has_kernels(weight: torch.Tensor) -> bool:
    return weight.is_cuda


class HiddenLayer:
    """Under tensor parallelism every rank keeps its share of each hidden state, so that the saving
    is what it is on one device; it gets the others' when keys and values are made.

    x: [num_tokens, hidden_size], what the attention block was last given. direct: decode attention
        to hidden states, where there is a way that does not make keys and values of them first.
    """

    def __init__(self, block: Any, num_kv_heads: int, head_size: int) -> None:
        self.project = KvProjection(block, num_kv_heads, head_size)
        self._num_ranks = get_tensor_model_parallel_world_size()
        self._share = block.qkv_proj.input_size // self._num_ranks
        self.direct = _direct(self.project, block.attn.impl.scale, self._num_ranks)
        self._scatter = _scatter_of(self.project.key)
        self._begin = self._share * get_tensor_model_parallel_rank()
        self.x = torch.empty(0)
        block.register_forward_pre_hook(self._take, with_kwargs=True)

    def write(self, cache: torch.Tensor, x: torch.Tensor, slots: torch.Tensor) -> None:
        """cache: the layer's pages, as vLLM has them. x: [num_tokens, hidden_size]."""
        mine = x[:, self._begin : self._begin + self._share]
        self._scatter(mine, self.pages(cache), slots)

    def read(self, cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size]."""
        pages = self.pages(cache)
        mine = pages[slots // pages.shape[1], slots % pages.shape[1]]
        return tensor_model_parallel_all_gather(mine) if self._num_ranks > 1 else mine

    def pages(self, cache: torch.Tensor) -> torch.Tensor:
        """Return the cache as [num_pages, hidden_states_per_block, hidden_size / ranks].

        A page's elements lie together, in whatever order keys and values have in it.
        """
        page = (cache.shape[0], cache[0].numel())
        return hidden_view(cache.as_strided(page, (cache.stride(0), 1)), self._share)

    def _take(self, block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hidden states are the last argument of every attention block that is known here."""
        self.x = kwargs["hidden_states"] if "hidden_states" in kwargs else args[-1]


def _direct(project: KvProjection, scale: float, num_ranks: int) -> Direct | None:
    if has_kernels(project.key) and num_ranks == 1:
        # Triton is on machines with a GPU only.
        from macroserve.engine.vllm.hybrid.triton_attention import TritonAttention, knows

        if knows(project.rotary):
            return TritonAttention(project, scale)
    return AbsorbedAttention(project, scale) if project.rotary is None else None


def _scatter_of(weight: torch.Tensor) -> Scatter:
    if not has_kernels(weight):
        return _scatter
    from macroserve.kernels.write_hidden import write_hidden

    return write_hidden


def _scatter(x: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    pages[slots // pages.shape[1], slots % pages.shape[1]] = x
