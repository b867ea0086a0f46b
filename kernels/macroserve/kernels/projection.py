"""Projection of hidden states to heads of keys and values, shared by several kernels."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from macroserve.kernels.product import product


@dataclass(frozen=True, slots=True)
class KvProjection:
    """Weights that compute keys and values from a hidden state."""

    key: torch.Tensor
    """Weights, [num_kv_heads * head_size, hidden_size], contiguous."""
    value: torch.Tensor
    """Weights, [num_kv_heads * head_size, hidden_size], contiguous."""
    head_size: int
    """Elements of a head; even."""
    key_bias: torch.Tensor | None = None
    """[num_kv_heads * head_size], or None."""
    value_bias: torch.Tensor | None = None
    """[num_kv_heads * head_size], or None."""
    rotary: torch.Tensor | None = None
    """[positions, head_size]: cosines, then sines, each for half of a head, whose halves are paired
    (as in Llama; GPT-J interleaves). None without rotary embedding."""

    @property
    def hidden_size(self) -> int:
        return self.key.shape[1]

    @property
    def num_kv_heads(self) -> int:
        return self.key.shape[0] // self.head_size

    def keys(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return keys, [..., num_kv_heads, head_size] in float32.

        x: [..., hidden_size].
        positions: [...].
        """
        keys = self._heads(x, self.key, self.key_bias)
        if self.rotary is None:
            return keys
        cos, sin = self.rotary[positions].float()[..., None, :].chunk(2, dim=-1)
        first, second = keys.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def values(self, x: torch.Tensor) -> torch.Tensor:
        """Return values, [..., num_kv_heads, head_size] in float32.

        x: [..., hidden_size].
        """
        return self._heads(x, self.value, self.value_bias)

    def _heads(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        heads = torch.nn.functional.linear(
            x.float(), weight.float(), None if bias is None else bias.float()
        )
        return heads.unflatten(-1, (self.num_kv_heads, self.head_size))


@triton.jit
def project_head(
    row_ptrs,
    row_mask,
    weight_ptr,
    bias_ptr,
    head,
    hidden_size,
    HEAD: tl.constexpr,
    HALF: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return both halves of one head, [ROWS, HALF] in float32.

    HALF is a power of two, at least half of HEAD.

    row_ptrs: pointers to hidden states, [ROWS].
    row_mask: whether each row exists, [ROWS].
    """
    column = tl.arange(0, HALF)
    is_column = column < HEAD // 2
    inner = tl.arange(0, STEP)
    first_ptrs = weight_ptr + (head * HEAD + column).to(tl.int64)[None, :] * hidden_size
    second_ptrs = first_ptrs + HEAD // 2 * hidden_size
    first = tl.zeros([ROWS, HALF], tl.float32)
    second = tl.zeros([ROWS, HALF], tl.float32)
    for start in range(0, hidden_size, STEP):
        index = start + inner
        is_inner = index < hidden_size
        x = tl.load(
            row_ptrs[:, None] + index[None, :], row_mask[:, None] & is_inner[None, :], other=0.0
        )
        mask = is_inner[:, None] & is_column[None, :]
        w = tl.load(first_ptrs + index[:, None], mask, other=0.0)
        first += product(x, w, PRECISION)
        w = tl.load(second_ptrs + index[:, None], mask, other=0.0)
        second += product(x, w, PRECISION)
    if HAS_BIAS:
        bias_ptrs = bias_ptr + head * HEAD + column
        first += tl.load(bias_ptrs, is_column, other=0.0).to(tl.float32)[None, :]
        second += tl.load(bias_ptrs + HEAD // 2, is_column, other=0.0).to(tl.float32)[None, :]
    return first, second


@triton.jit
def rotate(first, second, positions, row_mask, rotary_ptr, HEAD: tl.constexpr, HALF: tl.constexpr):
    """Apply the rotary embedding to both halves of a head, at ``positions`` [ROWS]."""
    column = tl.arange(0, HALF)
    mask = row_mask[:, None] & (column < HEAD // 2)[None, :]
    ptrs = rotary_ptr + positions.to(tl.int64)[:, None] * HEAD + column[None, :]
    cos = tl.load(ptrs, mask, other=0.0).to(tl.float32)
    sin = tl.load(ptrs + HEAD // 2, mask, other=0.0).to(tl.float32)
    return first * cos - second * sin, second * cos + first * sin
