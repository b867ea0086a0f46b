"""Decode attention on hidden states by weight absorption, in plain matrix products.

A score is ``q (W_k x) = (q W_k) x`` and a head's output ``sum p (W_v x) = W_v sum p x``: without a
rotary embedding, each needs one projection per step instead of one per token (``kernels``).
"""

import torch
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
    tensor_model_parallel_all_reduce,
)

from macroserve.engine.vllm.hybrid.metadata import DirectContext
from macroserve.engine.vllm.hybrid.projection import KvProjection


class AbsorbedAttention:
    """Attention of one layer on hidden states.

    Under tensor parallelism each rank has a part of every hidden state, for which it computes the
    scores and weighted sums of all ranks' heads. The ranks exchange a score per head and token,
    about a hundredth of the hidden states.
    """

    def __init__(self, project: KvProjection, scale: float) -> None:
        self._project = project
        self._scale = scale
        self._num_ranks = get_tensor_model_parallel_world_size()
        self._rank = get_tensor_model_parallel_rank()

    def __call__(
        self, query: torch.Tensor, pages: torch.Tensor, context: DirectContext
    ) -> torch.Tensor:
        """Return the attention output, [num_requests, num_heads, head_size] as ``query``.

        pages: [num_pages, hidden_states_per_block, hidden_size / ranks], with this step's tokens.
        """
        absorbed = self._absorb(query)
        capacity = pages.shape[1]
        x = pages[context.slots // capacity, context.slots % capacity]
        pieces = x.split(context.lens)
        scores = torch.cat([q @ x.t() for q, x in zip(absorbed, pieces, strict=True)], dim=1)
        if self._num_ranks > 1:
            scores = tensor_model_parallel_all_reduce(scores)
        shares = (self._scale * scores).split(context.lens, dim=1)
        mixed = [s.softmax(-1).to(x.dtype) @ x for s, x in zip(shares, pieces, strict=True)]
        return self._values(torch.stack(mixed))

    def _absorb(self, query: torch.Tensor) -> torch.Tensor:
        """Return queries on hidden states, [num_requests, heads of all ranks, hidden_size / ranks].

        The softmax cancels the keys' bias, which adds the same to all scores of a head.
        """
        groups = query.unflatten(1, (self._project.key.shape[0], -1))
        absorbed = torch.einsum("rkgd,kdh->rkgh", groups, self._project.key).flatten(1, 2)
        if self._num_ranks > 1:
            # vLLM's gather through shared memory, on CPUs, needs contiguous tensors.
            absorbed = tensor_model_parallel_all_gather(absorbed.contiguous(), dim=1)
            absorbed = absorbed.chunk(self._num_ranks, dim=-1)[self._rank]
        return absorbed.float()

    def _values(self, mixed: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the heads, [num_requests, num_heads, head_size].

        mixed: [num_requests, heads of all ranks, hidden_size / ranks]. A head's weights sum to one,
            so the values' bias is added once.
        """
        if self._num_ranks > 1:
            mixed = tensor_model_parallel_all_gather(mixed, dim=-1)
            mixed = mixed.chunk(self._num_ranks, dim=1)[self._rank]
        groups = mixed.unflatten(1, (self._project.value.shape[0], -1))
        values = torch.einsum("rkgh,kdh->rkgd", groups, self._project.value)
        if self._project.value_bias is not None:
            values = values + self._project.value_bias[:, None]
        return values.flatten(1, 2)
