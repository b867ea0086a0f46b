"""Decode attention reads paged keys and values, with one query per request (flash decoding)."""

import torch
import triton
import triton.language as tl

from macroserve.kernels.decodes import Decodes
from macroserve.kernels.device import stages
from macroserve.kernels.partials import join
from macroserve.kernels.product import MIN_ROWS, precision, product

TOKENS = 64
PIECE_TOKENS = 512


def attend_kv(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    decodes: Decodes,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Write the attention output of each of ``decodes`` to its row of ``out``; other rows are
    unchanged.

    query, out: [num_rows, num_heads, head_size], contiguous; num_heads is a multiple of
        num_kv_heads.
    key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_size] of the same dtype and
        strides; a head's elements are contiguous.
    """
    if not len(decodes):
        return
    (_, num_heads, head_size), (_, block_size, num_kv_heads, _) = query.shape, key_cache.shape
    num_pieces = triton.cdiv(decodes.max_seq_len, PIECE_TOKENS)
    shape = (len(decodes), num_heads, num_pieces)
    partials = query.new_empty((*shape, head_size), dtype=torch.float32)
    lse = query.new_full(shape, -torch.inf, dtype=torch.float32)
    _attend[num_kv_heads, num_pieces, len(decodes)](
        query,
        key_cache,
        value_cache,
        decodes.block_table,
        decodes.seq_lens,
        decodes.requests,
        partials,
        lse,
        scale,
        num_heads,
        block_size,
        decodes.block_table.stride(0),
        key_cache.stride(0),
        key_cache.stride(1),
        key_cache.stride(2),
        HEAD=head_size,
        SIZE=triton.next_power_of_2(head_size),
        GROUP=num_heads // num_kv_heads,
        ROWS=max(MIN_ROWS, triton.next_power_of_2(num_heads // num_kv_heads)),
        TOKENS=TOKENS,
        PIECE_TOKENS=PIECE_TOKENS,
        PRECISION=precision(query),
        num_stages=stages(query.device),
    )
    join(partials, lse, decodes.requests, out)


def attend_kv_reference(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    decodes: Decodes,
    scale: float,
    out: torch.Tensor,
) -> None:
    for row in decodes.requests.tolist():
        at = decodes.places(row, key_cache.shape[1])
        out[row] = attention(query[row], key_cache[at], value_cache[at], scale).to(out.dtype)


def attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return the attention output, [num_heads, head_size] in float32.

    query: [num_heads, head_size].
    keys, values: [num_tokens, num_kv_heads, head_size].
    """
    group = query.shape[0] // keys.shape[1]
    keys, values = (each.float().repeat_interleave(group, dim=1) for each in (keys, values))
    scores = torch.einsum("hd,thd->ht", query.float(), keys) * scale
    return torch.einsum("ht,thd->hd", scores.softmax(dim=-1), values)


@triton.jit
def _attend(
    query,
    key_cache,
    value_cache,
    block_table,
    seq_lens,
    requests,
    partials,
    lse,
    scale,
    num_heads,
    block_size,
    table_stride,
    block_stride,
    token_stride,
    head_stride,
    HEAD: tl.constexpr,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    PIECE_TOKENS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    kv_head = tl.program_id(0)
    piece, num_pieces = tl.program_id(1), tl.num_programs(1)
    index = tl.program_id(2).to(tl.int64)
    request = tl.load(requests + index)
    seq_len = tl.load(seq_lens + request)
    begin = piece * PIECE_TOKENS
    if begin < seq_len:
        row, column = tl.arange(0, ROWS), tl.arange(0, SIZE)
        head = kv_head * GROUP + row
        is_head, is_column = row < GROUP, column < HEAD
        at = query + (request * num_heads + head)[:, None] * HEAD + column[None, :]
        q = tl.load(at, is_head[:, None] & is_column[None, :], other=0.0)
        most = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        sums = tl.zeros([ROWS, SIZE], tl.float32)
        for start in range(begin, tl.minimum(begin + PIECE_TOKENS, seq_len), TOKENS):
            token = start + tl.arange(0, TOKENS)
            is_token = token < seq_len
            block = tl.load(block_table + request * table_stride + token // block_size, is_token, 0)
            slot = block.to(tl.int64) * block_stride + token % block_size * token_stride
            slot = (slot + kv_head * head_stride)[:, None] + column[None, :]
            mask = is_token[:, None] & is_column[None, :]
            k = tl.load(key_cache + slot, mask, other=0.0)
            scores = product(q, tl.trans(k), PRECISION) * scale
            scores = tl.where(is_token[None, :], scores, float("-inf"))
            now_most = tl.maximum(most, tl.max(scores, 1))
            kept = tl.exp(most - now_most)
            weights = tl.exp(scores - now_most[:, None])
            v = tl.load(value_cache + slot, mask, other=0.0)
            sums = sums * kept[:, None] + product(weights.to(v.dtype), v, PRECISION)
            total = total * kept + tl.sum(weights, 1)
            most = now_most
        out_row = (index * num_heads + head) * num_pieces + piece
        at = partials + out_row[:, None] * HEAD + column[None, :]
        tl.store(at, sums / total[:, None], is_head[:, None] & is_column[None, :])
        tl.store(lse + out_row, most + tl.log(total), is_head)
