"""Softmax weights of tiles of hidden states, and their weighted sum, in two kernels.

A head's weighted sum is as wide as a hidden state and does not stay in registers while scores are
computed. So the first kernel computes the softmax weights of each tile of tokens, and the second
the sum, a part of its width at a time.
"""

import torch
import triton
import triton.language as tl

from macroserve.kernels.decodes import Decodes
from macroserve.kernels.device import stages
from macroserve.kernels.product import MIN_ROWS, precision, product
from macroserve.kernels.projection import KvProjection, project_head, rotate

TOKENS = 128
"""Tokens of a tile."""
STEP = 64
"""Elements that a product sums over at a time; divides TOKENS."""
WIDTH = 128
"""Elements of the weighted sum computed at a time."""
MAX_HEADS = 64
"""Most heads computed together."""


class Tiles:
    """Tiles of a batch's hidden states.

    Attributes:
        _weights: softmax weights relative to the maximum of their tile,
            [num_requests, num_heads, num_tiles * TOKENS].
        _m_i, _l_i: the maximum score and the weights' sum, [num_requests, num_heads, num_tiles].
    """

    def __init__(self, hidden_cache: torch.Tensor, decodes: Decodes, num_heads: int) -> None:
        self._cache = hidden_cache
        self._cache_args = (
            hidden_cache,
            decodes.block_table,
            decodes.seq_lens,
            decodes.requests,
            hidden_cache.shape[2],
            hidden_cache.shape[1],
            hidden_cache.stride(0),
            decodes.block_table.stride(0),
        )
        self._num_requests, self._num_heads = len(decodes), num_heads
        self._num_tiles = triton.cdiv(decodes.max_seq_len, TOKENS)
        self._heads = min(MAX_HEADS, max(MIN_ROWS, triton.next_power_of_2(num_heads)))
        shape = (self._num_requests, num_heads, self._num_tiles)
        self._weights = hidden_cache.new_empty((*shape[:2], self._num_tiles * TOKENS))
        self._m_i = hidden_cache.new_empty(shape, dtype=torch.float32)
        self._l_i = torch.empty_like(self._m_i)

    def score(self, absorbed: torch.Tensor, scale: float) -> None:
        grid = (triton.cdiv(self._num_heads, self._heads), self._num_tiles, self._num_requests)
        _score[grid](
            absorbed,
            *self._cache_args,
            self._weights,
            self._m_i,
            self._l_i,
            scale,
            self._num_heads,
            HEADS=self._heads,
            TOKENS=TOKENS,
            STEP=STEP,
            PRECISION=precision(self._cache),
            num_stages=stages(self._cache.device),
        )

    def score_rotated(self, query: torch.Tensor, projection: KvProjection, scale: float) -> None:
        group = self._num_heads // projection.num_kv_heads
        # Heads of the same tokens run together, so that their hidden states are read from L2.
        _score_rotated[projection.num_kv_heads, self._num_tiles, self._num_requests](
            query,
            *self._cache_args,
            projection.key,
            projection.key_bias,
            projection.rotary,
            self._weights,
            self._m_i,
            self._l_i,
            scale,
            HEAD=projection.head_size,
            HALF=triton.next_power_of_2(projection.head_size // 2),
            GROUP=group,
            ROWS=max(MIN_ROWS, triton.next_power_of_2(group)),
            HAS_BIAS=projection.key_bias is not None,
            TOKENS=TOKENS,
            STEP=STEP,
            PRECISION=precision(self._cache),
            num_stages=stages(self._cache.device),
        )

    def mix(self) -> torch.Tensor:
        """Return the weighted sum of hidden states, [num_requests, num_heads, hidden_size]."""
        hidden_size = self._cache.shape[2]
        mixed = self._cache.new_empty((self._num_requests, self._num_heads, hidden_size))
        groups = triton.cdiv(self._num_heads, self._heads)
        _mix[triton.cdiv(hidden_size, WIDTH), groups, self._num_requests](
            *self._cache_args,
            self._weights,
            self._m_i,
            self._l_i,
            mixed,
            self._num_heads,
            self._num_tiles,
            HEADS=self._heads,
            TOKENS=TOKENS,
            STEP=STEP,
            WIDTH=WIDTH,
            PRECISION=precision(self._cache),
            num_stages=stages(self._cache.device),
        )
        return mixed


@triton.jit
def _stretch(
    hidden_cache_ptr,
    block_table_ptr,
    request,
    start,
    seq_len,
    hidden_size,
    capacity,
    stride_page,
    stride_table,
    TOKENS: tl.constexpr,
):
    """Return a tile of a request's tokens, whether each exists, and pointers to their states."""
    token = start + tl.arange(0, TOKENS)
    is_token = token < seq_len
    block = tl.load(block_table_ptr + request * stride_table + token // capacity, is_token, other=0)
    state_ptrs = (
        hidden_cache_ptr + block.to(tl.int64) * stride_page + token % capacity * hidden_size
    )
    return token, is_token, state_ptrs


@triton.jit
def _store_weights(
    scores, is_token, weights_ptr, m_ptr, l_ptr, row, is_head, tile, TOKENS: tl.constexpr
):
    """Store the softmax weights of a tile with their maximum and sum.

    scores: [heads, TOKENS].
    row: row of each head in the three outputs.
    """
    num_tiles = tl.num_programs(1)
    scores = tl.where(is_token[None, :], scores, float("-inf"))
    m_i = tl.max(scores, 1)
    p = tl.exp(scores - m_i[:, None])
    ptrs = weights_ptr + (row * num_tiles + tile)[:, None] * TOKENS + tl.arange(0, TOKENS)[None, :]
    tl.store(ptrs, p.to(weights_ptr.dtype.element_ty), is_head[:, None] & is_token[None, :])
    tl.store(m_ptr + row * num_tiles + tile, m_i, is_head)
    tl.store(l_ptr + row * num_tiles + tile, tl.sum(p, 1), is_head)


@triton.jit
def _score(
    absorbed_ptr,
    hidden_cache_ptr,
    block_table_ptr,
    seq_lens_ptr,
    requests_ptr,
    hidden_size,
    capacity,
    stride_page,
    stride_table,
    weights_ptr,
    m_ptr,
    l_ptr,
    scale,
    num_heads,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile = tl.program_id(1)
    index = tl.program_id(2).to(tl.int64)
    request = tl.load(requests_ptr + index)
    seq_len = tl.load(seq_lens_ptr + request)
    if tile * TOKENS < seq_len:
        head = tl.program_id(0) * HEADS + tl.arange(0, HEADS)
        is_head = head < num_heads
        row = index * num_heads + head
        _token, is_token, state_ptrs = _stretch(
            hidden_cache_ptr,
            block_table_ptr,
            request,
            tile * TOKENS,
            seq_len,
            hidden_size,
            capacity,
            stride_page,
            stride_table,
            TOKENS,
        )
        scores = tl.zeros([HEADS, TOKENS], tl.float32)
        for start in range(0, hidden_size, STEP):
            inner = start + tl.arange(0, STEP)
            is_inner = inner < hidden_size
            q_ptrs = absorbed_ptr + row[:, None] * hidden_size + inner[None, :]
            q = tl.load(q_ptrs, is_head[:, None] & is_inner[None, :], other=0.0)
            x = tl.load(
                state_ptrs[:, None] + inner[None, :],
                is_token[:, None] & is_inner[None, :],
                other=0.0,
            )
            scores += product(q, tl.trans(x), PRECISION)
        _store_weights(
            scores * scale, is_token, weights_ptr, m_ptr, l_ptr, row, is_head, tile, TOKENS
        )


@triton.jit
def _score_rotated(
    query_ptr,
    hidden_cache_ptr,
    block_table_ptr,
    seq_lens_ptr,
    requests_ptr,
    hidden_size,
    capacity,
    stride_page,
    stride_table,
    key_weight_ptr,
    key_bias_ptr,
    rotary_ptr,
    weights_ptr,
    m_ptr,
    l_ptr,
    scale,
    HEAD: tl.constexpr,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TOKENS: tl.constexpr,
    STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    kv_head, num_heads = tl.program_id(0), tl.num_programs(0) * GROUP
    tile = tl.program_id(1)
    index = tl.program_id(2).to(tl.int64)
    request = tl.load(requests_ptr + index)
    seq_len = tl.load(seq_lens_ptr + request)
    if tile * TOKENS < seq_len:
        token, is_token, state_ptrs = _stretch(
            hidden_cache_ptr,
            block_table_ptr,
            request,
            tile * TOKENS,
            seq_len,
            hidden_size,
            capacity,
            stride_page,
            stride_table,
            TOKENS,
        )
        first, second = project_head(
            state_ptrs,
            is_token,
            key_weight_ptr,
            key_bias_ptr,
            kv_head,
            hidden_size,
            HEAD,
            HALF,
            HAS_BIAS,
            TOKENS,
            STEP,
            PRECISION,
        )
        first, second = rotate(first, second, token, is_token, rotary_ptr, HEAD, HALF)
        row, column = tl.arange(0, ROWS), tl.arange(0, HALF)
        is_head = row < GROUP
        head = kv_head * GROUP + row
        q_ptrs = query_ptr + (request * num_heads + head)[:, None] * HEAD + column[None, :]
        mask = is_head[:, None] & (column < HEAD // 2)[None, :]
        q = tl.load(q_ptrs, mask, other=0.0)
        scores = product(q, tl.trans(first.to(q.dtype)), PRECISION)
        q = tl.load(q_ptrs + HEAD // 2, mask, other=0.0)
        scores += product(q, tl.trans(second.to(q.dtype)), PRECISION)
        _store_weights(
            scores * scale,
            is_token,
            weights_ptr,
            m_ptr,
            l_ptr,
            index * num_heads + head,
            is_head,
            tile,
            TOKENS,
        )


@triton.jit
def _mix(
    hidden_cache_ptr,
    block_table_ptr,
    seq_lens_ptr,
    requests_ptr,
    hidden_size,
    capacity,
    stride_page,
    stride_table,
    weights_ptr,
    m_ptr,
    l_ptr,
    mixed_ptr,
    num_heads,
    num_tiles,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    STEP: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    is_column = column < hidden_size
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_head = head < num_heads
    index = tl.program_id(2).to(tl.int64)
    row = index * num_heads + head
    request = tl.load(requests_ptr + index)
    seq_len = tl.load(seq_lens_ptr + request)
    stats = row * num_tiles
    m_i = tl.full([HEADS], float("-inf"), tl.float32)
    l_i = tl.zeros([HEADS], tl.float32)
    for tile in range(tl.cdiv(seq_len, TOKENS)):
        tile_m = tl.load(m_ptr + stats + tile, is_head, other=0.0)
        tile_l = tl.load(l_ptr + stats + tile, is_head, other=1.0)
        m_new = tl.maximum(m_i, tile_m)
        l_i = l_i * tl.exp(m_i - m_new)
        l_i += tile_l * tl.exp(tile_m - m_new)
        m_i = m_new
    acc = tl.zeros([HEADS, WIDTH], tl.float32)
    for start in range(0, seq_len, STEP):
        token, is_token, state_ptrs = _stretch(
            hidden_cache_ptr,
            block_table_ptr,
            request,
            start,
            seq_len,
            hidden_size,
            capacity,
            stride_page,
            stride_table,
            STEP,
        )
        x = tl.load(
            state_ptrs[:, None] + column[None, :], is_token[:, None] & is_column[None, :], other=0.0
        )
        p_ptrs = weights_ptr + (stats * TOKENS)[:, None] + token[None, :]
        p = tl.load(p_ptrs, is_head[:, None] & is_token[None, :], other=0.0)
        tile_m = tl.load(m_ptr + stats + start // TOKENS, is_head, other=0.0)
        acc += product(p, x, PRECISION) * (tl.exp(tile_m - m_i) / l_i)[:, None]
    out_ptrs = mixed_ptr + row[:, None] * hidden_size + column[None, :]
    tl.store(out_ptrs, acc.to(mixed_ptr.dtype.element_ty), is_head[:, None] & is_column[None, :])
