"""Scatter of hidden states to their blocks in one pass (Apt-Serve, section 4.1)."""

import torch
import triton
import triton.language as tl

BLOCK = 1024


def write_hidden(x: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Write each row of ``x`` to its slot of ``cache``; skip rows with a negative slot.

    x: [num_tokens, hidden_size], rows contiguous.
    cache: [num_blocks, capacity, hidden_size] of the same dtype, as ``pool.hidden_view``'s.
    slots: [num_tokens] of int64, block * capacity + offset, no two alike.
    """
    num_tokens, hidden_size = x.shape
    if num_tokens:
        grid = (num_tokens, triton.cdiv(hidden_size, BLOCK))
        _write[grid](
            x, cache, slots, cache.shape[1], hidden_size, x.stride(0), cache.stride(0), BLOCK=BLOCK
        )


def write_hidden_reference(x: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    kept = slots >= 0
    block, offset = slots[kept] // cache.shape[1], slots[kept] % cache.shape[1]
    cache[block, offset] = x[kept]


@triton.jit
def _write(
    x_ptr, cache_ptr, slots_ptr, capacity, hidden_size, stride_x, stride_page, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        row = slot // capacity * stride_page + slot % capacity * hidden_size
        mask = column < hidden_size
        values = tl.load(x_ptr + token * stride_x + column, mask=mask)
        tl.store(cache_ptr + row + column, values, mask=mask)
