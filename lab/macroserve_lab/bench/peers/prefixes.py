"""A synthesized trace with shared prefixes, in the form of Mooncake's ``hash_ids``."""

from random import Random

from macroserve.workload.arrivals import BLOCK_TOKENS, Arrival
from macroserve.workload.lengths import Lognormal

NUM_ROWS = 4096
NUM_PREFIXES = 24
"""Prefixes, together larger than one engine's cache and smaller than three."""
PREFIX_BLOCKS = (12, 36)
"""Range of blocks of a shared prefix: 6,000 to 18,000 tokens, like documents and tools."""
QUESTION_BLOCKS = (1, 6)
"""Range of blocks that belong to one request."""
_OUTPUT = Lognormal(343.0, 250.0)
"""Output tokens; the mean is that of Mooncake's conversations."""


def shared_prefixes(seed: int = 0) -> list[Arrival]:
    """Return requests with shared prefixes, of which the k-th most popular has the weight 1 / k
    (Zipf)."""
    random = Random(seed)
    next_id = 0

    def fresh(low: int, high: int) -> tuple[int, ...]:
        nonlocal next_id
        first, next_id = next_id, next_id + random.randint(low, high)
        return tuple(range(first, next_id))

    prefixes = [fresh(*PREFIX_BLOCKS) for _ in range(NUM_PREFIXES)]
    weights = [1 / rank for rank in range(1, NUM_PREFIXES + 1)]
    rows: list[Arrival] = []
    for prefix in random.choices(prefixes, weights, k=NUM_ROWS):
        blocks = prefix + fresh(*QUESTION_BLOCKS)
        rows.append(
            Arrival(0.0, BLOCK_TOKENS * len(blocks), _OUTPUT.draw(random), block_ids=blocks)
        )
    return rows
