"""Layers of one kind of attention form a group; every group draws its blocks from one pool.

Full attention keeps the blocks of all tokens. A sliding window drops the blocks that it has passed,
and a recurrent layer keeps only its state.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple


class BlockGroup(NamedTuple):
    """A group has one list of blocks for each request."""

    block_size: int
    """Tokens per block."""
    max_blocks: int | None = None
    """Maximum blocks of a request at a time; None if it keeps all."""
    max_decoding_blocks: int | None = None
    """Maximum once its prompt is computed, which takes a window's worth of blocks and no more."""


class BlockGroups:
    """The groups of a model determine the blocks of a request by its tokens.

    Attributes:
        prefilling: Blocks of a request whose prompt is being computed.
        decoding: Blocks of a request whose prompt is computed; never more.
        block_size: Tokens per block of the longest request, all groups together.
    """

    def __init__(self, groups: Iterable[BlockGroup], max_model_len: int) -> None:
        groups = tuple(groups)
        self.prefilling = _Blocks([(g.block_size, g.max_blocks) for g in groups], max_model_len)
        self.decoding = _Blocks(
            [(g.block_size, g.max_decoding_blocks) for g in groups], max_model_len
        )
        self.block_size = max_model_len // self.decoding.blocks_for(max_model_len) or 1


class _Blocks:
    """The list holds the lengths beyond which a request needs one more block.

    sizes: for each group, tokens per block and the maximum blocks of a request.
    """

    def __init__(self, sizes: Iterable[tuple[int, int | None]], max_model_len: int) -> None:
        self._max_model_len = max_model_len
        steps = [range(0, max_model_len, size)[:most] for size, most in sizes]
        self._steps = sorted(chain.from_iterable(steps))

    def blocks_for(self, num_tokens: int) -> int:
        return bisect_left(self._steps, num_tokens)

    def room(self, num_blocks: int) -> int:
        """Return the number of tokens that as many blocks hold."""
        return self._steps[num_blocks] if num_blocks < len(self._steps) else self._max_model_len
