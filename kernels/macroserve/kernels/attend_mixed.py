"""Decode attention serves batches in which some requests keep keys and values and some hidden
states.

Both are in pages of one pool (Apt-Serve, section 4.1).
"""

import torch

from macroserve.kernels.attend_hidden import attend_hidden, attend_hidden_reference
from macroserve.kernels.attend_kv import attend_kv, attend_kv_reference
from macroserve.kernels.decodes import Decodes
from macroserve.kernels.pool import hidden_view, kv_view
from macroserve.kernels.projection import KvProjection


def attend_mixed(
    query: torch.Tensor,
    pool: torch.Tensor,
    block_size: int,
    kv: Decodes,
    hidden: Decodes,
    projection: KvProjection,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Write the attention output of all decodes of the batch to their rows of ``out``.

    query, out: [num_rows, num_heads, head_size], contiguous.
    pool: [num_blocks, 2 * block_size * num_kv_heads * head_size] of the same dtype.
    block_size: tokens per block of keys and values; ``hidden_view`` gives the capacity of a block
        of hidden states.
    """
    keys, values = kv_view(pool, block_size, projection.num_kv_heads, projection.head_size)
    attend_kv(query, keys, values, kv, scale, out)
    states = hidden_view(pool, projection.hidden_size)
    attend_hidden(query, states, hidden, projection, scale, out)


def attend_mixed_reference(
    query: torch.Tensor,
    pool: torch.Tensor,
    block_size: int,
    kv: Decodes,
    hidden: Decodes,
    projection: KvProjection,
    scale: float,
    out: torch.Tensor,
) -> None:
    keys, values = kv_view(pool, block_size, projection.num_kv_heads, projection.head_size)
    attend_kv_reference(query, keys, values, kv, scale, out)
    states = hidden_view(pool, projection.hidden_size)
    attend_hidden_reference(query, states, hidden, projection, scale, out)
