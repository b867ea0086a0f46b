"""A reduction joins the attention over pieces of a context, each with its own maximum score (flash
decoding)."""

import torch
import triton
import triton.language as tl


def join(
    partials: torch.Tensor, lse: torch.Tensor, requests: torch.Tensor, out: torch.Tensor
) -> None:
    """Write the joined output of each request to its row of ``out``.

    partials: [num_requests, num_heads, num_pieces, size] in float32, each piece's own output.
    lse: [num_requests, num_heads, num_pieces], the logarithm of its sum of exponentials; -inf
        without a token.
    requests: [num_requests], rows of ``out``.
    out: [num_rows, num_heads, size], contiguous.
    """
    num_requests, num_heads, num_pieces, size = partials.shape
    _join[num_heads, num_requests](
        partials,
        lse,
        requests,
        out,
        num_pieces,
        size,
        SIZE=triton.next_power_of_2(size),
        PIECES=triton.next_power_of_2(num_pieces),
    )


@triton.jit
def _join(
    partials_ptr,
    lse_ptr,
    requests_ptr,
    out_ptr,
    num_pieces,
    size,
    SIZE: tl.constexpr,
    PIECES: tl.constexpr,
):
    head, num_heads = tl.program_id(0), tl.num_programs(0)
    index = tl.program_id(1).to(tl.int64)
    row = index * num_heads + head
    piece, column = tl.arange(0, PIECES), tl.arange(0, SIZE)
    is_piece, is_column = piece < num_pieces, column < size
    each = tl.load(lse_ptr + row * num_pieces + piece, is_piece, other=float("-inf"))
    weight = tl.exp(each - tl.max(each, 0))
    weight /= tl.sum(weight, 0)
    ptrs = partials_ptr + (row * num_pieces + piece)[:, None] * size + column[None, :]
    partial = tl.load(ptrs, (weight > 0)[:, None] & is_column[None, :], other=0.0)
    acc = tl.sum(weight[:, None] * partial, 0)
    out_offset = (tl.load(requests_ptr + index) * num_heads + head) * size
    tl.store(out_ptr + out_offset + column, acc.to(out_ptr.dtype.element_ty), is_column)
