"""Which requests run and what of them is cached: Apt-Serve's hybrid-cache scheduling problem.

Maximise the summed values of the chosen requests within the memory (section 5, definition 1), an
0-1 knapsack in which each item comes in two sizes: its KV cache, or the hidden cache of about half
that size, which costs all requests the time to rebuild keys and values from it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from macroserve.core.instance.cache import Cache


class Candidates(NamedTuple):
    """Requests of which any may be chosen; each field has one number for each of them.

    values: gained if it runs with a KV cache of ``num_blocks``. num_hidden_blocks: of its hidden
    cache, which is chosen only where that is less.
    """

    values: NDArray[np.float64]
    num_blocks: NDArray[np.int64]
    num_hidden_blocks: NDArray[np.int64]

    def hidden_values(self, penalty: float) -> NDArray[np.float64]:
        """Of those that run with a hidden cache (equation 8)."""
        return self.values - penalty * self.num_blocks


def choose(candidates: Candidates, num_blocks: int, penalty: float) -> dict[int, Cache]:
    """The chosen candidates by their index, and each one's cache, within ``num_blocks``.

    penalty: value lost for each block of KV that is not kept.
    The better of two answers (section 5): the greedy one, which spends memory where a block gains
    most, and the most valuable single request. It reaches half of the optimum at least.
    """
    values, whole, half = candidates
    if not len(values):
        return {}
    hidden_values = candidates.hidden_values(penalty)
    fits = whole <= num_blocks
    # Whose hidden cache gains less per block than its KV cache is offered as KV alone, unless that
    # exceeds all memory.
    hides = (half <= num_blocks) & (half < whole) & (hidden_values > 0)
    hides &= ~fits | (hidden_values * whole >= values * half)
    chosen = _greedy(candidates, hidden_values, hides, fits, num_blocks, penalty)
    total = sum(
        [values[i] if cache is Cache.KV else hidden_values[i] for i, cache in chosen.items()]
    )
    alone = np.where(
        np.minimum(whole, half) <= num_blocks, np.where(fits, values, hidden_values), 0
    )
    best = int(alone.argmax())
    if alone[best] > total:
        return {best: Cache.KV if fits[best] else Cache.HIDDEN}
    return chosen


def _greedy(
    candidates: Candidates,
    hidden_values: NDArray[np.float64],
    hides: NDArray[np.bool_],
    fits: NDArray[np.bool_],
    num_blocks: int,
    penalty: float,
) -> dict[int, Cache]:
    """Two ways to spend memory on each: on its first cache, and to make a hidden one a KV cache."""
    values, whole, half = candidates
    first = np.where(hides, half, whole)
    first_gain = np.where(hides, hidden_values, values) / first
    (begins,) = np.nonzero(hides | fits)
    (grows,) = np.nonzero(hides & fits)
    more = whole[grows] - half[grows]
    more_gain = penalty * whole[grows] / more
    indices = np.concatenate([begins, grows])
    needs = np.concatenate([first[begins], more])
    gains = np.concatenate([first_gain[begins], more_gain])
    is_more = np.arange(len(indices)) >= len(begins)
    order = np.lexsort((is_more, indices, -gains))
    # Nothing fits any more once less is free than the least of them needs.
    least = int(needs.min(initial=num_blocks + 1))
    chosen: dict[int, Cache] = {}
    free = num_blocks
    for index, needed, grown, hidden in zip(
        indices[order].tolist(),
        needs[order].tolist(),
        is_more[order].tolist(),
        hides[indices[order]].tolist(),
        strict=True,
    ):
        if free < least:
            break
        if needed <= free and (not grown or index in chosen):
            chosen[index] = Cache.HIDDEN if hidden and not grown else Cache.KV
            free -= needed
    return chosen
