"""Apt-Serve's hybrid-cache scheduling problem chooses the requests to run and their caches.

The problem maximizes the summed values of the chosen requests within the memory (section 5,
definition 1). It is a 0-1 knapsack in which each item comes in two sizes: its KV cache, or the
hidden cache of about half that size, which costs all requests the time to rebuild keys and values
from it.
"""

from typing import NamedTuple

from macroserve.core.scheduler.blocks import CacheKind


class Items(NamedTuple):
    """Items are the requests that may be chosen; each list has one number for each item."""

    values: list[float]
    """Value gained if the request runs with a KV cache, seconds."""
    kv_blocks: list[int]
    """Blocks of its KV cache, at least one."""
    hidden_blocks: list[int]
    """Blocks of its hidden cache, which is chosen only if it is smaller."""


def choose(items: Items, num_blocks: int, penalty: float) -> dict[int, CacheKind]:
    """Return the indices of the chosen items, and each one's cache, within ``num_blocks``.

    penalty: value lost for each block of KV that is not kept (equation 8).

    The result is the better of two (section 5): the greedy one, which spends memory where a block
    gains most, and the most valuable single request, beside which others run that still fit. It
    reaches at least half of the optimum. O(n log n), on plain lists: compiled, they are faster than
    arrays for any number of items.
    """
    # Memory is spent on an item's first cache, or to turn its hidden cache into a KV cache. An
    # offer is the index of an item for a KV cache, or its complement for a hidden one.
    offers: list[int] = []
    gains: list[float] = []  # of each block of an offer
    least = num_blocks + 1  # No offer needs less.
    alone, most_alone = -1, 0.0
    for index, value in enumerate(items.values):
        whole, half = items.kv_blocks[index], items.hidden_blocks[index]
        fits = whole <= num_blocks
        hidden_value = value - penalty * whole
        # An item whose hidden cache gains less per block than its KV cache is offered a KV
        # cache alone, unless that exceeds all memory.
        if (
            half <= num_blocks
            and half < whole
            and hidden_value > 0
            and (not fits or hidden_value * whole >= value * half)
        ):
            needed, gain = half, hidden_value / half
            offers.append(~index)
            gains.append(gain)
            if fits:
                needed = min(half, whole - half)
                offers.append(index)
                gains.append(min(gain, penalty * whole / (whole - half)))
        elif fits:
            needed = whole
            offers.append(index)
            gains.append(value / whole)
        else:
            continue
        if needed < least:
            least = needed
        value_alone = value if fits else hidden_value
        if value_alone > most_alone:
            alone, most_alone = index, value_alone
    chosen = _greedy(items, offers, gains, num_blocks, least)
    total = 0.0
    for index, cache in chosen.items():
        total += items.values[index]
        if cache is CacheKind.HIDDEN:
            total -= penalty * items.kv_blocks[index]
    if most_alone <= total:
        return chosen
    fits = items.kv_blocks[alone] <= num_blocks
    needed = items.kv_blocks[alone] if fits else items.hidden_blocks[alone]
    others = [place for place, index in enumerate(offers) if index not in (alone, ~alone)]
    offers, gains = [offers[place] for place in others], [gains[place] for place in others]
    beside = _greedy(items, offers, gains, num_blocks - needed, least)
    return {alone: CacheKind.KV if fits else CacheKind.HIDDEN, **beside}


def _greedy(
    items: Items, offers: list[int], gains: list[float], num_blocks: int, least: int
) -> dict[int, CacheKind]:
    """Take the offers with the most gain per block, among equals the earlier, until fewer blocks
    are free than the smallest offer needs (``least``)."""
    chosen: dict[int, CacheKind] = {}
    free = num_blocks
    for place in sorted(range(len(gains)), key=gains.__getitem__, reverse=True):
        if free < least:
            break
        index = offers[place]
        if index < 0:
            index, cache = ~index, CacheKind.HIDDEN
            needed = items.hidden_blocks[index]
        else:
            cache, needed = CacheKind.KV, items.kv_blocks[index]
            if index in chosen:  # upgrade its hidden cache to a KV cache
                needed -= items.hidden_blocks[index]
        if needed <= free:
            chosen[index] = cache
            free -= needed
    return chosen
