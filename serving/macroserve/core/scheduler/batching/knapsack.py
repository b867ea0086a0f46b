"""Which requests run and what of them is cached: Apt-Serve's hybrid-cache scheduling problem.

Maximise the summed values of the chosen requests within the memory (section 5, definition 1), an
0-1 knapsack in which each item comes in two sizes: its KV cache, or the hidden cache of about half
that size, which costs all requests the time to rebuild keys and values from it.
"""

from typing import NamedTuple

from macroserve.core.scheduler.blocks import CacheKind


class Candidates(NamedTuple):
    """Requests of which any may be chosen; each list has one number for each of them.

    values: gained if it runs with a KV cache of ``kv_blocks``, at least one. hidden_blocks: of its
    hidden cache, which is chosen only where that is less.
    """

    values: list[float]
    kv_blocks: list[int]
    hidden_blocks: list[int]


def choose(candidates: Candidates, num_blocks: int, penalty: float) -> dict[int, CacheKind]:
    """The chosen candidates by their index, and each one's cache, within ``num_blocks``.

    penalty: value lost for each block of KV that is not kept (equation 8).
    The better of two answers (section 5): the greedy one, which spends memory where a block gains
    most, and the most valuable single request. It reaches half of the optimum at least. O(n log n),
    on plain lists: compiled, they are quicker than arrays however many the candidates are.
    """
    # Two ways to spend memory on each: on its first cache, and to make a hidden one a KV cache. An
    # offer is the index of whom a KV cache is for, or the complement of it for a hidden one.
    offers: list[int] = []
    gains: list[float] = []  # of each block of an offer
    least = num_blocks + 1  # No offer needs less.
    alone, most_alone = -1, 0.0
    for index, value in enumerate(candidates.values):
        whole, half = candidates.kv_blocks[index], candidates.hidden_blocks[index]
        fits = whole <= num_blocks
        hidden_value = value - penalty * whole
        # Whose hidden cache gains less per block than its KV cache is offered as KV alone, unless
        # that exceeds all memory.
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
    chosen = _greedy(candidates, offers, gains, num_blocks, least)
    total = 0.0
    for index, cache in chosen.items():
        total += candidates.values[index]
        if cache is CacheKind.HIDDEN:
            total -= penalty * candidates.kv_blocks[index]
    if most_alone > total:
        fits = candidates.kv_blocks[alone] <= num_blocks
        return {alone: CacheKind.KV if fits else CacheKind.HIDDEN}
    return chosen


def _greedy(
    candidates: Candidates, offers: list[int], gains: list[float], num_blocks: int, least: int
) -> dict[int, CacheKind]:
    """The offers that a block gains most by, until less is free than the ``least`` of them needs;
    of equal ones the earlier."""
    chosen: dict[int, CacheKind] = {}
    free = num_blocks
    for place in sorted(range(len(gains)), key=gains.__getitem__, reverse=True):
        if free < least:
            break
        index = offers[place]
        if index < 0:
            index, cache = ~index, CacheKind.HIDDEN
            needed = candidates.hidden_blocks[index]
        else:
            cache, needed = CacheKind.KV, candidates.kv_blocks[index]
            if index in chosen:  # its hidden cache is made a KV cache
                needed -= candidates.hidden_blocks[index]
        if needed <= free:
            chosen[index] = cache
            free -= needed
    return chosen
