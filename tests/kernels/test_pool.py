"""A pool is read as keys and values or as hidden states."""

import pytest
import torch

from macroserve.kernels.pool import hidden_view, kv_view


def test_kv_view_of_a_page_is_keys_then_values() -> None:
    pool = torch.arange(2 * 24).view(2, 24)
    keys, values = kv_view(pool, block_size=3, num_kv_heads=2, head_size=2)
    assert keys.shape == values.shape == (2, 3, 2, 2)
    assert keys[1].flatten().tolist() == list(range(24, 36))
    assert values[1].flatten().tolist() == list(range(36, 48))


@pytest.mark.parametrize(("hidden_size", "capacity"), [(4, 6), (8, 3), (12, 2), (24, 1), (7, 3)])
def test_hidden_view_of_a_page_holds_as_many_as_fit(hidden_size: int, capacity: int) -> None:
    """Twice as many fit as keys and values (three) if a hidden state is as wide as all heads
    (4)."""
    pool = torch.arange(2 * 24).view(2, 24)
    states = hidden_view(pool, hidden_size)
    assert states.shape == (2, capacity, hidden_size)
    assert states[1].flatten().tolist() == list(range(24, 24 + capacity * hidden_size))


def test_pool_views_share_the_memory_of_the_pool() -> None:
    pool = torch.zeros(2, 24)
    for view in (hidden_view(pool, 4), *kv_view(pool, 3, 2, 2)):
        view.fill_(1)
        assert pool.any()
        pool.zero_()


def test_hidden_view_of_too_small_a_page_is_refused() -> None:
    with pytest.raises(ValueError, match="a page of 64 elements holds no hidden state of 128"):
        hidden_view(torch.zeros(4, 64), 128)
