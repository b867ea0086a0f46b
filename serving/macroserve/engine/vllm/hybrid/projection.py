"""The projection of hidden states to keys and values of one attention block."""

from typing import Any

import torch


class KvProjection:
    """The projection by an attention block's weights, for one rank's heads.

    block: a module with ``qkv_proj``, for queries, keys and values, and maybe ``rotary_emb``.

    Attributes:
        key, value: weights, [num_kv_heads, head_size, hidden_size].
        key_bias, value_bias: [num_kv_heads, head_size], or None.
        rotary: the block's ``rotary_emb``, or None.
    """

    def __init__(self, block: Any, num_kv_heads: int, head_size: int) -> None:
        self.rotary = getattr(block, "rotary_emb", None)
        qkv, size = block.qkv_proj, num_kv_heads * head_size
        weight = qkv.weight if qkv.weight.numel() else _unpacked(qkv)
        bias = getattr(qkv, "bias", None)
        self._weight = weight[-2 * size :]
        self._bias = None if bias is None else bias[-2 * size :].to(weight.dtype)
        heads = (num_kv_heads, head_size)
        self.key = self._weight[:size].unflatten(0, heads)
        self.value = self._weight[size:].unflatten(0, heads)
        self.key_bias = None if self._bias is None else self._bias[:size].unflatten(0, heads)
        self.value_bias = None if self._bias is None else self._bias[size:].unflatten(0, heads)

    def __call__(
        self, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values, each [num_tokens, num_kv_heads, head_size].

        x: [num_tokens, hidden_size].
        positions: [num_tokens], int64, in their requests.
        """
        key, value = torch.nn.functional.linear(x, self._weight, self._bias).chunk(2, dim=-1)
        key = key.contiguous()
        if self.rotary is not None:
            key, _ = self.rotary(positions, key, None)
        heads = self.key.shape[:2]
        return key.unflatten(-1, heads), value.contiguous().unflatten(-1, heads)


def _unpacked(qkv: Any) -> torch.Tensor:
    """Return the weight, [out, in], of which vLLM keeps only a packed form on a CPU: the product
    with the identity is exactly its transpose."""
    identity = torch.eye(qkv.input_size_per_partition, dtype=qkv.weight.dtype)
    return qkv.quant_method.apply(qkv, identity, None).t().contiguous()
