"""Rebuild of keys and values from hidden states into a paged cache that any attention reads.

It combines gather, projection, rotary embedding and scatter (Apt-Serve, sections 3.1 and 4.1).
"""

import torch
import triton
import triton.language as tl

from macroserve.kernels.device import stages
from macroserve.kernels.product import MIN_ROWS, precision
from macroserve.kernels.projection import KvProjection, project_head, rotate

ROWS, STEP = 128, 64


def rebuild_kv(
    hidden_cache: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    projection: KvProjection,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    out_slots: torch.Tensor,
) -> None:
    """Write the keys and values of the tokens in ``slots`` to ``out_slots``.

    hidden_cache: [num_blocks, capacity, hidden_size].
    slots, positions, out_slots: [num_tokens], int64. A slot is block * capacity + offset, an output
        slot block * block_size + offset.
    key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_size] of the same dtype; a
        head's elements are contiguous.
    """
    num_tokens = slots.shape[0]
    if num_tokens == 0:
        return
    head = projection.head_size
    rows = min(ROWS, max(MIN_ROWS, triton.next_power_of_2(num_tokens)))
    grid = (projection.num_kv_heads, triton.cdiv(num_tokens, rows))
    for weight, bias, rotary, out in (
        (projection.key, projection.key_bias, projection.rotary, key_cache),
        (projection.value, projection.value_bias, None, value_cache),
    ):
        _rebuild[grid](
            hidden_cache,
            slots,
            positions,
            weight,
            bias,
            rotary,
            out,
            out_slots,
            num_tokens,
            projection.hidden_size,
            hidden_cache.shape[1],
            hidden_cache.stride(0),
            out.shape[1],
            out.stride(0),
            out.stride(1),
            out.stride(2),
            HEAD=head,
            HALF=triton.next_power_of_2(head // 2),
            HAS_BIAS=bias is not None,
            ROTATES=rotary is not None,
            ROWS=rows,
            STEP=STEP,
            PRECISION=precision(hidden_cache),
            num_stages=stages(hidden_cache.device),
        )


def rebuild_kv_reference(
    hidden_cache: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    projection: KvProjection,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    out_slots: torch.Tensor,
) -> None:
    capacity, block_size = hidden_cache.shape[1], key_cache.shape[1]
    x = hidden_cache[slots // capacity, slots % capacity]
    at = out_slots // block_size, out_slots % block_size
    key_cache[at] = projection.keys(x, positions).to(key_cache.dtype)
    value_cache[at] = projection.values(x).to(value_cache.dtype)


@triton.jit
def _rebuild(
    hidden_cache_ptr,
    slots_ptr,
    positions_ptr,
    weight_ptr,
    bias_ptr,
    rotary_ptr,
    out_ptr,
    out_slots_ptr,
    num_tokens,
    hidden_size,
    capacity,
    stride_page,
    block_size,
    stride_out_block,
    stride_out_token,
    stride_out_head,
    HEAD: tl.constexpr,
    HALF: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROTATES: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    # Heads of the same tokens run together, so that their hidden states are read from L2.
    head = tl.program_id(0)
    token = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_token = token < num_tokens
    slot = tl.load(slots_ptr + token, is_token, other=0)
    row_ptrs = hidden_cache_ptr + slot // capacity * stride_page + slot % capacity * hidden_size
    first, second = project_head(
        row_ptrs,
        is_token,
        weight_ptr,
        bias_ptr,
        head,
        hidden_size,
        HEAD,
        HALF,
        HAS_BIAS,
        ROWS,
        STEP,
        PRECISION,
    )
    if ROTATES:
        position = tl.load(positions_ptr + token, is_token, other=0)
        first, second = rotate(first, second, position, is_token, rotary_ptr, HEAD, HALF)
    out_slot = tl.load(out_slots_ptr + token, is_token, other=0)
    out_row = out_slot // block_size * stride_out_block + out_slot % block_size * stride_out_token
    column = tl.arange(0, HALF)
    ptrs = out_ptr + (out_row + head * stride_out_head)[:, None] + column[None, :]
    mask = is_token[:, None] & (column < HEAD // 2)[None, :]
    tl.store(ptrs, first.to(out_ptr.dtype.element_ty), mask)
    tl.store(ptrs + HEAD // 2, second.to(out_ptr.dtype.element_ty), mask)
