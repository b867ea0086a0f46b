"""The worker learns which requests of the batch keep hidden states, and attention asks it."""

from typing import Protocol

import torch


class _Rows(Protocol):
    """The protocol is vLLM's ``InputBatch``."""

    @property
    def req_ids(self) -> list[str]: ...


class _Runner(Protocol):
    """The protocol is vLLM's model runner (V1)."""

    input_batch: _Rows


class HiddenRequests:
    """The set names the requests of the current batch that keep hidden states.

    Attributes:
        ids: ids of those requests.
    """

    def __init__(self, runner: _Runner) -> None:
        self._runner = runner
        self.ids: frozenset[str] = frozenset()

    def rows(self, num_rows: int) -> torch.Tensor:
        """Return whether each row of the batch keeps hidden states, [num_rows]; false for padding
        rows of trial runs."""
        mask = torch.zeros(num_rows, dtype=torch.bool)
        if self.ids:
            for row, request_id in enumerate(self._runner.input_batch.req_ids[:num_rows]):
                mask[row] = request_id in self.ids
        return mask
