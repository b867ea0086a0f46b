"""The block ids of a trace tell which prompts begin with the same blocks."""

from macroserve.core.routing.prefixes import BOUNDARIES, num_keys
from macroserve.workload.arrivals import BLOCK_TOKENS


def block_hashes(num_tokens: int, block_ids: tuple[int, ...], block_size: int) -> list[int]:
    """Return the hashes of a prompt's full cache blocks that lie in one block of the trace.

    They follow the prompt alone: no trace tells which prompts repeat a response.
    """
    hashes: list[int] = []
    for index, so_far in enumerate(_chain(block_ids)):
        start, end = index * BLOCK_TOKENS, min(num_tokens, (index + 1) * BLOCK_TOKENS)
        hashes += [hash((so_far, number)) for number in range((end - start) // block_size)]
    return hashes


def prefix_keys(num_tokens: int, block_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return the keys of a prompt's beginnings that lie in the trace's blocks, for routing."""
    chain = _chain(block_ids)
    boundaries = BOUNDARIES[: num_keys(min(num_tokens, len(chain) * BLOCK_TOKENS + 1))]
    return tuple([hash((chain[(end - 1) // BLOCK_TOKENS], end)) for end in boundaries])


def _chain(block_ids: tuple[int, ...]) -> list[int]:
    """Return a hash for each block of a trace, of all blocks up to it."""
    hashes: list[int] = []
    so_far = 0
    for block_id in block_ids:
        so_far = hash((so_far, block_id))
        hashes.append(so_far)
    return hashes
