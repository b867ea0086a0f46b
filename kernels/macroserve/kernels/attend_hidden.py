"""Decode attention over hidden states, without keys and values ever in memory.

A score is ``q (W_k x) = (q W_k) x``: where no rotary embedding comes between, the query takes the
projection of the keys in (as in DeepSeek's latent attention), and all heads read the same hidden
states. With one, keys are made in registers, a head and a tile of tokens at a time. Values need
neither: ``sum p (W_v x) = W_v sum p x``.
"""

import torch

from macroserve.kernels.attend_kv import attention
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
    """What each of ``decodes`` attends to, into its row of ``out``; other rows stay as they are.

    query, out: [num_rows, num_heads, head_size], contiguous; queries have their rotary embedding.
    hidden_cache: [num_blocks, capacity, hidden_size] of the same dtype; so many tokens are a block
        of ``decodes``.
    """
    if not len(decodes):
        return
    tiles = Tiles(hidden_cache, decodes, query.shape[1])
    if projection.rotary is None:
        wanted = query[decodes.requests].unflatten(1, (projection.num_kv_heads, -1))
        tiles.score(_absorbed(wanted, projection), scale)
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
        out[row] = attention(query[row], keys, projection.values(x), scale).to(out.dtype)


def _absorbed(query: torch.Tensor, projection: KvProjection) -> torch.Tensor:
    """Queries of hidden states, [num_requests, num_heads, hidden_size], of those of keys,
    [num_requests, num_kv_heads, group, head_size].

    The keys' bias adds the same to all scores of a head, which its softmax does not notice.
    """
    weight = projection.key.unflatten(0, (projection.num_kv_heads, -1))
    absorbed = torch.bmm(query.transpose(0, 1).flatten(1, 2), weight)
    return absorbed.unflatten(1, query.shape[0::2]).transpose(0, 1).flatten(1, 2).contiguous()


def _values(mixed: torch.Tensor, projection: KvProjection) -> torch.Tensor:
    """[num_requests, num_kv_heads, group, head_size], of mixed hidden states,
    [num_requests, num_kv_heads, group, hidden_size]. A head's weights add up to one, and so does
    what they make of the bias."""
    weight = projection.value.unflatten(0, (projection.num_kv_heads, -1))
    values = torch.bmm(mixed.transpose(0, 1).flatten(1, 2), weight.transpose(1, 2))
    values = values.unflatten(1, mixed.shape[0::2]).transpose(0, 1)
    if projection.value_bias is not None:
        values += projection.value_bias.view(projection.num_kv_heads, 1, projection.head_size)
    return values
