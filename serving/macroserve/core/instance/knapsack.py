"""Which requests run and what of them is cached: Apt-Serve's hybrid-cache scheduling problem.

Maximise the summed values of the chosen requests within the memory (section 5, definition 1), an
0-1 knapsack in which each item comes in two sizes: its KV cache, or the hidden cache of about half
that size, which costs all requests the time to rebuild keys and values from it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from macroserve.core.instance.cache import Cache


class Candidate(NamedTuple):
    """value: gained if it runs with a KV cache of ``num_blocks``. num_hidden_blocks: of its hidden
    cache, which is chosen only where that is less."""

    value: float
    num_blocks: int
    num_hidden_blocks: int


class _Increment(NamedTuple):
    """One way to spend memory: on a request's hidden cache, or to make that, or nothing, a KV
    cache."""

    gain_per_block: float
    candidate: int
    num_blocks: int
    cache: Cache


def choose(candidates: Sequence[Candidate], num_blocks: int, penalty: float) -> dict[int, Cache]:
    """The chosen candidates by their index, and each one's cache, within ``num_blocks``.

    penalty: value lost for each block of KV that is not kept.
    The better of two answers (section 5): the greedy one, which spends memory where a block gains
    most, and the most valuable single request. It reaches half of the optimum at least.
    """
    increments = [
        increment
        for index, candidate in enumerate(candidates)
        for increment in _increments(index, candidate, num_blocks, penalty)
    ]
    increments.sort(key=lambda increment: -increment.gain_per_block)
    chosen: dict[int, Cache] = {}
    free = num_blocks
    for _, index, needed, cache in increments:
        is_upgrade = cache is Cache.KV and needed < candidates[index].num_blocks
        if needed <= free and (not is_upgrade or index in chosen):
            chosen[index] = cache
            free -= needed
    return _or_best_single(chosen, candidates, num_blocks, penalty)


def value(candidate: Candidate, cache: Cache, penalty: float) -> float:
    """Equation 8."""
    return candidate.value - (penalty * candidate.num_blocks if cache is Cache.HIDDEN else 0.0)


def _or_best_single(
    chosen: dict[int, Cache], candidates: Sequence[Candidate], num_blocks: int, penalty: float
) -> dict[int, Cache]:
    total = sum(value(candidates[index], cache, penalty) for index, cache in chosen.items())
    for index, candidate in enumerate(candidates):
        cache = Cache.KV if candidate.num_blocks <= num_blocks else Cache.HIDDEN
        alone = value(candidate, cache, penalty)
        if alone > total and min(candidate[1:]) <= num_blocks:
            total, chosen = alone, {index: cache}
    return chosen


def _increments(
    index: int, candidate: Candidate, num_blocks: int, penalty: float
) -> list[_Increment]:
    """In falling order of gain: a request whose hidden cache gains less per block than its KV
    cache is offered as KV alone, unless that exceeds all memory."""
    whole, half = candidate.num_blocks, candidate.num_hidden_blocks
    fits = whole <= num_blocks
    hidden_gain = value(candidate, Cache.HIDDEN, penalty)
    if half <= num_blocks and half < whole and hidden_gain > 0:
        if not fits:
            return [_Increment(hidden_gain / half, index, half, Cache.HIDDEN)]
        if hidden_gain * whole >= candidate.value * half:
            upgrade = whole - half
            return [
                _Increment(hidden_gain / half, index, half, Cache.HIDDEN),
                _Increment(penalty * whole / upgrade, index, upgrade, Cache.KV),
            ]
    if fits:
        return [_Increment(candidate.value / whole, index, whole, Cache.KV)]
    return []
