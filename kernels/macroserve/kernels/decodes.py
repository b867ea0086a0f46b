"""Requests of a batch that a kernel serves."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Decodes:
    """Requests that decode one token each, with one kind of cache."""

    block_table: torch.Tensor
    """[num_rows, max_blocks], int32, of the whole batch."""
    seq_lens: torch.Tensor
    """[num_rows], int32, of the whole batch; at least 1, including the decoded token."""
    requests: torch.Tensor
    """[num_requests], int64: rows that the kernel serves."""
    max_seq_len: int
    """Length of the longest of these requests, tokens."""

    def __len__(self) -> int:
        return self.requests.shape[0]

    def places(self, row: int, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return blocks and offsets of a row's tokens, for references."""
        position = torch.arange(int(self.seq_lens[row]), device=self.seq_lens.device)
        return self.block_table[row, position // block_size].long(), position % block_size
