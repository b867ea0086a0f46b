"""Pool of pages for both caches: a page is read as keys and values, or as hidden states.

A free block serves either (Apt-Serve, section 4.1).
"""

import torch


def kv_view(
    pool: torch.Tensor, block_size: int, num_kv_heads: int, head_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values, each [num_blocks, block_size, num_kv_heads, head_size].

    pool: [num_blocks, 2 * block_size * num_kv_heads * head_size].
    """
    pages = pool.view(pool.shape[0], 2, block_size, num_kv_heads, head_size)
    return pages[:, 0], pages[:, 1]


def hidden_view(pool: torch.Tensor, hidden_size: int) -> torch.Tensor:
    """Return hidden states, [num_blocks, capacity, hidden_size], as many as fit into a page.

    Raises ValueError if a page holds none.
    """
    capacity = pool.shape[1] // hidden_size
    if capacity == 0:
        raise ValueError(
            f"a page of {pool.shape[1]} elements holds no hidden state of {hidden_size}"
        )
    return pool[:, : capacity * hidden_size].unflatten(1, (capacity, hidden_size))
