"""The requests of a batch that one kernel serves."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Decodes:
    """Requests that decode one token each, with one kind of cache.

    block_table: [num_rows, max_blocks], int32. seq_lens: [num_rows], int32, none 0, the token that
        is decoded included. Both are the whole batch's.
    requests: [num_requests], int64, the rows that are meant. max_seq_len: the longest of them.
    """

    block_table: torch.Tensor
    seq_lens: torch.Tensor
    requests: torch.Tensor
    max_seq_len: int

    def __len__(self) -> int:
        return self.requests.shape[0]

    def places(self, row: int, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks and offsets of a row's tokens, for references."""
        position = torch.arange(int(self.seq_lens[row]), device=self.seq_lens.device)
        return self.block_table[row, position // block_size].long(), position % block_size
