"""Apt-Serve's greedy choice is compared with all possible choices."""

from itertools import product
from math import ceil, inf
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.scheduler.batching import aptserve
from macroserve.core.scheduler.batching.aptserve import KnapsackItems
from macroserve.core.scheduler.blocks import CacheKind


class Item(NamedTuple):
    worth: float
    num_blocks: int
    num_hidden_blocks: int


ITEMS = st.lists(
    st.builds(
        lambda worth, num_blocks, share: Item(worth, num_blocks, ceil(share * num_blocks)),
        st.floats(0, 100, allow_subnormal=False),
        st.integers(1, 20),
        # Hidden states may take more than keys and values.
        st.sampled_from([0.25, 0.5, 0.8, 1.0, 2.0]),
    ),
    max_size=6,
)
PENALTIES = st.one_of(st.floats(0, 10, allow_subnormal=False), st.just(inf))


def halved(worth: float, num_blocks: int) -> Item:
    return Item(worth, num_blocks, ceil(num_blocks / 2))


def blocks(item: Item, cache: CacheKind) -> int:
    return item.num_hidden_blocks if cache is CacheKind.HIDDEN else item.num_blocks


def value(item: Item, cache: CacheKind, penalty: float) -> float:
    """Return the value of a choice by equation 8."""
    return item.worth - (penalty * item.num_blocks if cache is CacheKind.HIDDEN else 0.0)


def choose(items: list[Item], num_blocks: int, penalty: float) -> dict[int, CacheKind]:
    worths, whole, half = zip(*items, strict=True) if items else ((), (), ())
    columns = KnapsackItems(list(worths), list(whole), list(half))
    return aptserve.choose(columns, num_blocks, penalty)


def optimum(items: list[Item], num_blocks: int, penalty: float) -> float:
    best = 0.0
    for caches in product((None, CacheKind.KV, CacheKind.HIDDEN), repeat=len(items)):
        chosen = [(c, cache) for c, cache in zip(items, caches, strict=True) if cache]
        if sum(blocks(*each) for each in chosen) <= num_blocks:
            best = max(best, sum(value(*each, penalty) for each in chosen))
    return best


@given(ITEMS, st.integers(0, 60), PENALTIES)
def test_knapsack_of_any_items_reaches_half_of_the_optimum(
    items: list[Item], num_blocks: int, penalty: float
) -> None:
    chosen = choose(items, num_blocks, penalty)
    assert sum(blocks(items[i], cache) for i, cache in chosen.items()) <= num_blocks
    total = sum(value(items[i], cache, penalty) for i, cache in chosen.items())
    assert total >= optimum(items, num_blocks, penalty) / 2 - 1e-9


def test_knapsack_fills_the_memory_beside_the_most_valuable_item() -> None:
    items = [halved(float(value), num) for value, num in ((9, 2), (9, 2), (9, 2), (29, 7))]
    assert choose(items, 9, inf) == {3: CacheKind.KV, 0: CacheKind.KV}


def test_knapsack_with_memory_for_all_uses_no_hidden_cache() -> None:
    items = [halved(float(v), 4) for v in range(1, 5)]
    assert choose(items, 16, 0.1) == dict.fromkeys(range(4), CacheKind.KV)


def test_knapsack_with_scarce_memory_hides_caches_that_gain() -> None:
    items = [halved(10.0, 4), halved(8.0, 4), halved(6.0, 4)]
    assert choose(items, 6, 0.01) == dict.fromkeys(range(3), CacheKind.HIDDEN)
    # What is left over makes the most valuable one whole again.
    assert list(choose(items, 8, 0.01).values()).count(CacheKind.KV) == 1


def test_knapsack_spends_each_block_where_it_gains_most() -> None:
    # To make the first two's caches whole gains two a block, and the third one gains one.
    items = [halved(10.0, 4), halved(10.0, 4), Item(1.0, 1, 1)]
    assert choose(items, 8, 1.0) == {0: CacheKind.KV, 1: CacheKind.KV}


def test_knapsack_with_a_high_penalty_uses_no_hidden_cache() -> None:
    items = [halved(10.0, 4), halved(8.0, 4), halved(6.0, 4)]
    assert choose(items, 6, 2.0) == {0: CacheKind.KV}
    assert choose(items, 6, inf) == {0: CacheKind.KV}


def test_knapsack_runs_too_large_a_request_with_a_hidden_cache() -> None:
    assert choose([halved(5.0, 10)], 6, 0.1) == {0: CacheKind.HIDDEN}
    assert choose([halved(5.0, 10)], 4, 0.1) == {}


def test_knapsack_prefers_one_valuable_request_to_many_small_ones() -> None:
    items = [halved(1.5, 1), halved(10.0, 10)]
    assert choose(items, 10, inf) == {1: CacheKind.KV}


def test_knapsack_subtracts_the_penalty_from_hidden_caches() -> None:
    # The first one's hidden cache takes a block, gains most by it, and leaves 6 of its value.
    items = [Item(9.0, 6, 1), Item(7.0, 5, 5)]
    assert choose(items, 5, 0.5) == {1: CacheKind.KV}


def test_knapsack_uses_the_last_blocks_to_upgrade_a_hidden_cache() -> None:
    items = [Item(50.0, 8, 8), Item(10.0, 10, 8)]
    assert choose(items, 18, 0.01) == dict.fromkeys(range(2), CacheKind.KV)


@pytest.mark.parametrize("num_blocks", [0, 5])
def test_knapsack_without_items_chooses_none(num_blocks: int) -> None:
    assert choose([], num_blocks, 1.0) == {}


def test_knapsack_with_larger_hidden_caches_uses_none() -> None:
    items = [Item(10.0, 4, 8), Item(8.0, 4, 4)]
    assert choose(items, 16, 0.1) == dict.fromkeys(range(2), CacheKind.KV)
    assert choose(items, 16, 0.0) == dict.fromkeys(range(2), CacheKind.KV)
    assert choose(items, 4, 0.1) == {0: CacheKind.KV}
    assert choose(items, 3, 0.1) == {}
