"""Two kernels compute softmax weights of tiles of hidden states, and their weighted sum.

There are two, for the weighted sum of a head is as wide as a hidden state and does not stay in
registers while scores are computed: first the scores, as softmax weights of each tile of tokens,
then the sum, a stretch of its width at a time.
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
"""Maximum heads computed together."""


class Tiles:
    """The tiles cover a batch's hidden states.

    Attributes:
        _weights: softmax weights relative to the maximum of their tile,
            [num_requests, num_heads, num_tiles * TOKENS].
        _most, _total: the maximum score and the weights' sum, [num_requests, num_heads, num_tiles].
    """

    def __init__(self, hidden_cache: torch.Tensor, decodes: Decodes, num_heads: int) -> None:
        self._cache = hidden_cache
        self._places = (
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
        self._most = hidden_cache.new_empty(shape, dtype=torch.float32)
        self._total = torch.empty_like(self._most)

    def score(self, absorbed: torch.Tensor, scale: float) -> None:
        grid = (triton.cdiv(self._num_heads, self._heads), self._num_tiles, self._num_requests)
        _score[grid](
            absorbed,
            *self._places,
            self._weights,
            self._most,
            self._total,
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
            *self._places,
            projection.key,
            projection.key_bias,
            projection.rotary,
            self._weights,
            self._most,
            self._total,
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
            *self._places,
            self._weights,
            self._most,
            self._total,
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
    hidden_cache,
    block_table,
    request,
    start,
    seq_len,
    hidden_size,
    capacity,
    page,
    table_stride,
    TOKENS: tl.constexpr,
):
    """Return a stretch of a request's tokens, whether each exists, and pointers to their states."""
    token = start + tl.arange(0, TOKENS)
    is_token = token < seq_len
    block = tl.load(block_table + request * table_stride + token // capacity, is_token, other=0)
    states = hidden_cache + block.to(tl.int64) * page + token % capacity * hidden_size
    return token, is_token, states


@triton.jit
def _store_weights(
    scores, is_token, weights, most, total, row, is_head, tile, TOKENS: tl.constexpr
):
    """Store the softmax weights of a tile with their maximum and sum.

    scores: [heads, TOKENS]. row: of each head in ``weights``, ``most`` and ``total``.
    """
    num_tiles = tl.num_programs(1)
    scores = tl.where(is_token[None, :], scores, float("-inf"))
    greatest = tl.max(scores, 1)
    found = tl.exp(scores - greatest[:, None])
    at = weights + (row * num_tiles + tile)[:, None] * TOKENS + tl.arange(0, TOKENS)[None, :]
    tl.store(at, found.to(weights.dtype.element_ty), is_head[:, None] & is_token[None, :])
    tl.store(most + row * num_tiles + tile, greatest, is_head)
    tl.store(total + row * num_tiles + tile, tl.sum(found, 1), is_head)


@triton.jit
def _score(
    absorbed,
    hidden_cache,
    block_table,
    seq_lens,
    requests,
    hidden_size,
    capacity,
    page,
    table_stride,
    weights,
    most,
    total,
    scale,
    num_heads,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile = tl.program_id(1)
    index = tl.program_id(2).to(tl.int64)
    request = tl.load(requests + index)
    seq_len = tl.load(seq_lens + request)
    if tile * TOKENS < seq_len:
        head = tl.program_id(0) * HEADS + tl.arange(0, HEADS)
        is_head = head < num_heads
        row = index * num_heads + head
        _token, is_token, states = _stretch(
            hidden_cache,
            block_table,
            request,
            tile * TOKENS,
            seq_len,
            hidden_size,
            capacity,
            page,
            table_stride,
            TOKENS,
        )
        scores = tl.zeros([HEADS, TOKENS], tl.float32)
        for start in range(0, hidden_size, STEP):
            at = start + tl.arange(0, STEP)
            is_at = at < hidden_size
            wanted = absorbed + row[:, None] * hidden_size + at[None, :]
            q = tl.load(wanted, is_head[:, None] & is_at[None, :], other=0.0)
            x = tl.load(
                states[:, None] + at[None, :], is_token[:, None] & is_at[None, :], other=0.0
            )
            scores += product(q, tl.trans(x), PRECISION)
        _store_weights(scores * scale, is_token, weights, most, total, row, is_head, tile, TOKENS)


@triton.jit
def _score_rotated(
    query,
    hidden_cache,
    block_table,
    seq_lens,
    requests,
    hidden_size,
    capacity,
    page,
    table_stride,
    key_weight,
    key_bias,
    rotary,
    weights,
    most,
    total,
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
    request = tl.load(requests + index)
    seq_len = tl.load(seq_lens + request)
    if tile * TOKENS < seq_len:
        token, is_token, states = _stretch(
            hidden_cache,
            block_table,
            request,
            tile * TOKENS,
            seq_len,
            hidden_size,
            capacity,
            page,
            table_stride,
            TOKENS,
        )
        first, second = project_head(
            states,
            is_token,
            key_weight,
            key_bias,
            kv_head,
            hidden_size,
            HEAD,
            HALF,
            HAS_BIAS,
            TOKENS,
            STEP,
            PRECISION,
        )
        first, second = rotate(first, second, token, is_token, rotary, HEAD, HALF)
        row, column = tl.arange(0, ROWS), tl.arange(0, HALF)
        is_head = row < GROUP
        head = kv_head * GROUP + row
        wanted = query + (request * num_heads + head)[:, None] * HEAD + column[None, :]
        mask = is_head[:, None] & (column < HEAD // 2)[None, :]
        q = tl.load(wanted, mask, other=0.0)
        scores = product(q, tl.trans(first.to(q.dtype)), PRECISION)
        q = tl.load(wanted + HEAD // 2, mask, other=0.0)
        scores += product(q, tl.trans(second.to(q.dtype)), PRECISION)
        _store_weights(
            scores * scale,
            is_token,
            weights,
            most,
            total,
            index * num_heads + head,
            is_head,
            tile,
            TOKENS,
        )


@triton.jit
def _mix(
    hidden_cache,
    block_table,
    seq_lens,
    requests,
    hidden_size,
    capacity,
    page,
    table_stride,
    weights,
    most,
    total,
    mixed,
    num_heads,
    num_tiles,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    STEP: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    is_at = at < hidden_size
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_head = head < num_heads
    index = tl.program_id(2).to(tl.int64)
    row = index * num_heads + head
    request = tl.load(requests + index)
    seq_len = tl.load(seq_lens + request)
    stats = row * num_tiles
    greatest = tl.full([HEADS], float("-inf"), tl.float32)
    sums = tl.zeros([HEADS], tl.float32)
    for tile in range(tl.cdiv(seq_len, TOKENS)):
        tile_most = tl.load(most + stats + tile, is_head, other=0.0)
        tile_total = tl.load(total + stats + tile, is_head, other=1.0)
        now_greatest = tl.maximum(greatest, tile_most)
        sums = sums * tl.exp(greatest - now_greatest)
        sums += tile_total * tl.exp(tile_most - now_greatest)
        greatest = now_greatest
    found = tl.zeros([HEADS, WIDTH], tl.float32)
    for start in range(0, seq_len, STEP):
        token, is_token, states = _stretch(
            hidden_cache,
            block_table,
            request,
            start,
            seq_len,
            hidden_size,
            capacity,
            page,
            table_stride,
            STEP,
        )
        x = tl.load(states[:, None] + at[None, :], is_token[:, None] & is_at[None, :], other=0.0)
        weight = weights + (stats * TOKENS)[:, None] + token[None, :]
        p = tl.load(weight, is_head[:, None] & is_token[None, :], other=0.0)
        tile_most = tl.load(most + stats + start // TOKENS, is_head, other=0.0)
        found += product(p, x, PRECISION) * (tl.exp(tile_most - greatest) / sums)[:, None]
    to = mixed + row[:, None] * hidden_size + at[None, :]
    tl.store(to, found.to(mixed.dtype.element_ty), is_head[:, None] & is_at[None, :])
