"""Hashes of prompt prefixes, derived from the block ids of a load."""

from collections.abc import Iterable
from itertools import accumulate, pairwise

from macroserve.core.routing.prefixes import BOUNDARIES, num_keys


def block_hashes(
    num_tokens: int,
    block_ids: tuple[int, ...],
    block_tokens: int,
    block_size: int,
    is_open: bool = False,
) -> list[int]:
    """Return the hashes of the full cache blocks that lie in the blocks of a load.

    num_tokens: tokens of a prompt; in a conversation, of prompt and response, which the next turn
        repeats.
    block_tokens: tokens per block of the load.
    block_size: tokens per block of the cache.
    is_open: whether the last block of the load is unbounded.
    """
    num_shared = num_tokens if is_open else min(num_tokens, len(block_ids) * block_tokens)
    ends = range(block_size, num_shared + 1, block_size)
    return _hashes(ends, block_ids, block_tokens)


def block_spans(
    num_tokens: int,
    block_ids: tuple[int, ...],
    block_tokens: int,
    block_size: int,
    is_open: bool = False,
) -> list[tuple[int, int]]:
    """Return the result of ``block_hashes`` in compact form: for each of the load's blocks in which
    full cache blocks end, a hash of the tokens up to its end and the number of these blocks."""
    num_shared = num_tokens if is_open else min(num_tokens, len(block_ids) * block_tokens)
    starts = [min(index * block_tokens, num_shared) for index in range(len(block_ids))]
    num_before = [num_tokens // block_size for num_tokens in (*starts, num_shared)]
    return [
        (key, end - start)
        for key, (start, end) in zip(_chain(block_ids)[1:], pairwise(num_before), strict=True)
        if end > start
    ]


def prefix_keys(
    num_tokens: int, block_ids: tuple[int, ...], block_tokens: int, is_open: bool = False
) -> tuple[int, ...]:
    """Return the keys for routing of a prompt's prefixes that lie in the load's blocks."""
    num_shared = num_tokens if is_open else min(num_tokens, len(block_ids) * block_tokens + 1)
    return tuple(_hashes(BOUNDARIES[: num_keys(num_shared)], block_ids, block_tokens))


def _hashes(ends: Iterable[int], block_ids: tuple[int, ...], block_tokens: int) -> list[int]:
    """Return a hash of the tokens up to each end, derived from the blocks up to there."""
    chain, last = _chain(block_ids), len(block_ids)
    return [hash((chain[min(-(-end // block_tokens), last)], end)) for end in ends]


def _chain(block_ids: tuple[int, ...]) -> list[int]:
    """Return the hash of no block, and of the blocks up to each."""
    return [*accumulate(block_ids, lambda so_far, block_id: hash((so_far, block_id)), initial=0)]
