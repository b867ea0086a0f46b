"""Decode attention on hidden states, without keys and values in memory.

A score is ``q (W_k x) = (q W_k) x``: without rotary embedding, the query absorbs the projection of
the keys (as in DeepSeek's latent attention), and all heads read the same hidden states. With it,
keys are computed in registers, for one head and tile of tokens at a time. Values need neither:
``sum p (W_v x) = W_v sum p x``.
"""

import torch

from macroserve.kernels.decodes import Decodes
from macroserve.kernels.projection import KvProjection
from macroserve.kernels.tiles import Tiles


def attend_hidden(
    query: torch.Tensor,
    hidden_cache: torch.Tensor,
    decodes: Decodes,
    projection: KvProjection,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Write the attention output of ``decodes`` to their rows of ``out``; other rows stay.

    query, out: [num_rows, num_heads, head_size], contiguous; queries have their rotary embedding.
    hidden_cache: [num_blocks, capacity, hidden_size] of the same dtype; ``decodes`` has blocks of
        ``capacity`` tokens.
    """
    if not len(decodes):
        return
    tiles = Tiles(hidden_cache, decodes, query.shape[1])
    if projection.rotary is None:
        q = query[decodes.requests].unflatten(1, (projection.num_kv_heads, -1))
        tiles.score(_absorbed(q, projection), scale)
    else:
        tiles.score_rotated(query, projection, scale)
    mixed = tiles.mix().unflatten(1, (projection.num_kv_heads, -1))
    out[decodes.requests] = _values(mixed, projection).flatten(1, 2)


def attend_hidden_reference(
    query: torch.Tensor,
    hidden_cache: torch.Tensor,
    decodes: Decodes,
    projection: KvProjection,
    scale: float,
    out: torch.Tensor,
) -> None:
    for row in decodes.requests.tolist():
        x = hidden_cache[decodes.places(row, hidden_cache.shape[1])]
        keys = projection.keys(x, torch.arange(len(x), device=x.device))
        group = query.shape[1] // projection.num_kv_heads
        keys, values = (
            each.repeat_interleave(group, dim=1) for each in (keys, projection.values(x))
        )
        scores = torch.einsum("hd,thd->ht", query[row].float(), keys) * scale
        out[row] = torch.einsum("ht,thd->hd", scores.softmax(dim=-1), values).to(out.dtype)


def _absorbed(query: torch.Tensor, projection: KvProjection) -> torch.Tensor:
    """Return queries on hidden states, [num_requests, num_heads, hidden_size].

    query: queries on keys, [num_requests, num_kv_heads, group, head_size].

    The keys' bias adds the same to all scores of a head, which its softmax cancels.
    """
    weight = projection.key.unflatten(0, (projection.num_kv_heads, -1))
    absorbed = torch.bmm(query.transpose(0, 1).flatten(1, 2), weight)
    return absorbed.unflatten(1, query.shape[0::2]).transpose(0, 1).flatten(1, 2).contiguous()


def _values(mixed: torch.Tensor, projection: KvProjection) -> torch.Tensor:
    """Return the heads' outputs, [num_requests, num_kv_heads, group, head_size].

    mixed: weighted sums of hidden states, [num_requests, num_kv_heads, group, hidden_size].

    A head's weights sum to one, so the values' bias is added once.
    """
    weight = projection.value.unflatten(0, (projection.num_kv_heads, -1))
    values = torch.bmm(mixed.transpose(0, 1).flatten(1, 2), weight.transpose(1, 2))
    values = values.unflatten(1, mixed.shape[0::2]).transpose(0, 1)
    if projection.value_bias is not None:
        values += projection.value_bias.view(projection.num_kv_heads, 1, projection.head_size)
    return values
