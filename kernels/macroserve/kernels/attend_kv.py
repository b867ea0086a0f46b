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
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_table_ptr,
    seq_lens_ptr,
    requests_ptr,
    partials_ptr,
    lse_ptr,
    scale,
    num_heads,
    block_size,
    stride_table,
    stride_block,
    stride_token,
    stride_head,
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
    request = tl.load(requests_ptr + index)
    seq_len = tl.load(seq_lens_ptr + request)
    begin = piece * PIECE_TOKENS
    if begin < seq_len:
        row, column = tl.arange(0, ROWS), tl.arange(0, SIZE)
        head = kv_head * GROUP + row
        is_head, is_column = row < GROUP, column < HEAD
        ptrs = query_ptr + (request * num_heads + head)[:, None] * HEAD + column[None, :]
        q = tl.load(ptrs, is_head[:, None] & is_column[None, :], other=0.0)
        m_i = tl.full([ROWS], float("-inf"), tl.float32)
        l_i = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, SIZE], tl.float32)
        for start in range(begin, tl.minimum(begin + PIECE_TOKENS, seq_len), TOKENS):
            token = start + tl.arange(0, TOKENS)
            is_token = token < seq_len
            block = tl.load(
                block_table_ptr + request * stride_table + token // block_size, is_token, 0
            )
            slot = block.to(tl.int64) * stride_block + token % block_size * stride_token
            slot = (slot + kv_head * stride_head)[:, None] + column[None, :]
            mask = is_token[:, None] & is_column[None, :]
            k = tl.load(key_cache_ptr + slot, mask, other=0.0)
            scores = product(q, tl.trans(k), PRECISION) * scale
            scores = tl.where(is_token[None, :], scores, float("-inf"))
            m_new = tl.maximum(m_i, tl.max(scores, 1))
            alpha = tl.exp(m_i - m_new)
            p = tl.exp(scores - m_new[:, None])
            v = tl.load(value_cache_ptr + slot, mask, other=0.0)
            acc = acc * alpha[:, None] + product(p.to(v.dtype), v, PRECISION)
            l_i = l_i * alpha + tl.sum(p, 1)
            m_i = m_new
        out_row = (index * num_heads + head) * num_pieces + piece
        ptrs = partials_ptr + out_row[:, None] * HEAD + column[None, :]
        tl.store(ptrs, acc / l_i[:, None], is_head[:, None] & is_column[None, :])
        tl.store(lse_ptr + out_row, m_i + tl.log(l_i), is_head)
