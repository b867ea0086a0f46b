"""The block ids of a trace tell which prompts begin with the same blocks."""

from macroserve.core.routing.prefixes import BOUNDARIES, num_keys
from macroserve.workload.arrivals import BLOCK_TOKENS


def block_hashes(num_tokens: int, block_ids: tuple[int, ...], block_size: int) -> list[int]:
    """Return the hashes of a prompt's full cache blocks that lie in one block of the trace.

    They follow the prompt alone: no trace tells which prompts repeat a response.
    """
    hashes: list[int] = []
    so_far = 0
    for index, block_id in enumerate(block_ids):
        so_far = hash((so_far, block_id))
        start, end = index * BLOCK_TOKENS, min(num_tokens, (index + 1) * BLOCK_TOKENS)
        hashes += [hash((so_far, number)) for number in range((end - start) // block_size)]
    return hashes


def prefix_keys(num_tokens: int, block_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return the keys of a prompt's beginnings that lie in the trace's blocks, for routing."""
    keys: list[int] = []
    so_far, num_hashed = 0, 0
    for boundary in BOUNDARIES[: num_keys(num_tokens)]:
        num_blocks = -(-boundary // BLOCK_TOKENS)
        if num_blocks > len(block_ids):
            break
        for block_id in block_ids[num_hashed:num_blocks]:
            so_far = hash((so_far, block_id))
        num_hashed = num_blocks
        keys.append(hash((so_far, boundary)))
    return tuple(keys)
