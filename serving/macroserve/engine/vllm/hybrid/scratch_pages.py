"""Memory for recomputed keys and values, shared by all layers."""

from collections.abc import Iterator

import torch
from vllm.utils.math_utils import cdiv

MIN_TOKENS = 8192
"""Tokens recomputed at once for short requests: enough to occupy any device; more would take memory
from the pool."""


class Scratch:
    """Pages for at least the longest request; larger batches are processed in groups."""

    def __init__(self, max_model_len: int, block_size: int) -> None:
        self.num_pages = cdiv(max(MIN_TOKENS, max_model_len), block_size)
        self._block_size = block_size
        self._pages: torch.Tensor | None = None

    @property
    def num_tokens(self) -> int:
        return self.num_pages * self._block_size

    def pages(self, like: torch.Tensor) -> torch.Tensor:
        """Return the pages, with the layout of ``like``. They are initialized, as attention reads
        whole pages and the entries that it masks must not be NaN."""
        if self._pages is None:
            self._pages = torch.empty_strided(
                (self.num_pages, *like.shape[1:]),
                (like[0].numel(), *like.stride()[1:]),
                dtype=like.dtype,
                device=like.device,
            ).zero_()
        return self._pages

    def in_turn(self, rows: torch.Tensor, seq_lens: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the requests ``rows``, with lengths ``seq_lens``, in groups that fit."""
        begin = num_pages = 0
        for index, seq_len in enumerate(seq_lens.tolist()):
            needed = cdiv(seq_len, self._block_size)
            if num_pages + needed > self.num_pages:
                yield rows[begin:index]
                begin, num_pages = index, 0
            num_pages += needed
        if begin < len(rows):
            yield rows[begin:]
