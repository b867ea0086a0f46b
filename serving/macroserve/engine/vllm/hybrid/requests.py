"""The requests of the current batch that keep hidden states."""

from typing import Protocol

import torch


class _Rows(Protocol):
    """vLLM's ``InputBatch``."""

    @property
    def req_ids(self) -> list[str]: ...


class _Runner(Protocol):
    """vLLM's model runner (V1)."""

    input_batch: _Rows


class HiddenRequests:
    def __init__(self, runner: _Runner) -> None:
        self._runner = runner
        self.ids: frozenset[str] = frozenset()

    def rows(self, num_rows: int) -> torch.Tensor:
        """Return whether each row of the batch keeps hidden states, [num_rows]; false for the
        padding of trial runs."""
        mask = torch.zeros(num_rows, dtype=torch.bool)
        if self.ids:
            for row, request_id in enumerate(self._runner.input_batch.req_ids[:num_rows]):
                mask[row] = request_id in self.ids
        return mask
