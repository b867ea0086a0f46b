"""The block ids of a trace tell which prompts begin with the same blocks."""

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
