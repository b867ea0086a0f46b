"""The hidden states of one layer, on one rank."""

from typing import Any

import torch
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
)

from macroserve.engine.vllm.hybrid.direct import DirectAttention
from macroserve.engine.vllm.hybrid.projection import KvProjection
from macroserve.kernels.pool import hidden_view


class HiddenLayer:
    """Under tensor parallelism every rank keeps its share of each hidden state, so that the saving
    is what it is on one device; it gets the others' when keys and values are made.

    x: [num_tokens, hidden_size], what the attention block was last given. direct: attention to
        hidden states as they are, where no rotary embedding forbids it.
    """

    def __init__(self, block: Any, num_kv_heads: int, head_size: int) -> None:
        self.project = KvProjection(block, num_kv_heads, head_size)
        self._num_ranks = get_tensor_model_parallel_world_size()
        self._share = block.qkv_proj.input_size // self._num_ranks
        rotates = self.project.rotary is not None
        self.direct = None if rotates else DirectAttention(self.project, block.attn.impl.scale)
        self._begin = self._share * get_tensor_model_parallel_rank()
        self.x = torch.empty(0)
        block.register_forward_pre_hook(self._take, with_kwargs=True)

    def write(self, cache: torch.Tensor, x: torch.Tensor, slots: torch.Tensor) -> None:
        """cache: the layer's pages, as vLLM has them. x: [num_tokens, hidden_size]."""
        pages = self.pages(cache)
        mine = x[:, self._begin : self._begin + self._share]
        pages[slots // pages.shape[1], slots % pages.shape[1]] = mine

    def read(self, cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size]."""
        pages = self.pages(cache)
        mine = pages[slots // pages.shape[1], slots % pages.shape[1]]
        return tensor_model_parallel_all_gather(mine) if self._num_ranks > 1 else mine

    def pages(self, cache: torch.Tensor) -> torch.Tensor:
        """[num_pages, hidden_slots, hidden_size / ranks]; a page's elements lie together, in
        whatever order keys and values have in it."""
        page = (cache.shape[0], cache[0].numel())
        return hidden_view(cache.as_strided(page, (cache.stride(0), 1)), self._share)

    def _take(self, block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hidden states are the last argument of every attention block that is known here."""
        self.x = kwargs["hidden_states"] if "hidden_states" in kwargs else args[-1]
