"""The metadata divides a batch by its requests' caches, in the terms of vLLM's attention."""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata

from macroserve.kernels.decodes import Decodes


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a batch has requests with one kind of cache."""

    tokens: torch.Tensor | slice
    """Indices of the part's tokens in the batch, in the batch's order."""
    metadata: Any
    """vLLM's attention metadata of the part alone."""
    slots: torch.Tensor
    """Slots of the keys and values of the part's tokens."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The keys and values of these tokens are recomputed; each tensor is [num_tokens], int64."""

    read: torch.Tensor
    """Slots of the hidden states."""
    positions: torch.Tensor
    """Positions of the tokens in their requests."""
    slots: torch.Tensor
    """Slots of the recomputed keys and values."""


@dataclass(frozen=True, slots=True)
class RebuiltContext:
    """The context locates tokens with hidden states, and their keys and values during one layer."""

    written: torch.Tensor
    """Slots of the hidden states of this step's tokens."""
    made: torch.Tensor
    """Slots of the keys and values of this step's tokens."""
    before: Rebuilt
    """All earlier tokens."""
    block_table: torch.Tensor
    """Block table of the keys and values."""


@dataclass(frozen=True, slots=True)
class RebuiltPart(Part):
    """The part's keys and values are recomputed into slots that last for one layer."""

    context: RebuiltContext


@dataclass(frozen=True, slots=True)
class DirectContext:
    """The context locates the hidden states of requests that decode one token each."""

    lens: list[int]
    """Tokens of each request, this step's included."""
    slots: torch.Tensor
    """Slots of all those tokens, request by request."""
    written: torch.Tensor
    """Slot of each request's last token."""
    decodes: Decodes
    """The same in the form that the Triton kernels take, with all rows."""


@dataclass(frozen=True, slots=True)
class DirectPart:
    """Attention reads the hidden states of the part's requests directly; each decodes one token."""

    tokens: torch.Tensor
    """Indices of the part's tokens in the batch."""
    context: DirectContext


def of_requests(
    common: CommonAttentionMetadata, rows: torch.Tensor, tokens: torch.Tensor
) -> CommonAttentionMetadata:
    """Return the metadata of some requests alone, as if the batch had no others.

    rows: [num_requests], int64.
    tokens: result of ``tokens_of``.
    """
    query_lens = common.naive_query_lens()[rows]
    start = torch.zeros(len(rows) + 1, dtype=common.query_start_loc.dtype, device=rows.device)
    torch.cumsum(query_lens, 0, out=start[1:])
    seq_lens = common.seq_lens[rows]
    return common.replace(
        query_start_loc=start,
        query_start_loc_cpu=start.cpu(),
        seq_lens=seq_lens,
        num_reqs=len(rows),
        num_actual_tokens=int(start[-1]),
        max_query_len=int(query_lens.max()),
        max_seq_len=int(seq_lens.max()),
        block_table_tensor=common.block_table_tensor[rows],
        slot_mapping=common.slot_mapping[tokens],
        is_prefilling=_of(common.is_prefilling, rows),
        seq_lens_cpu_upper_bound=_of(common.seq_lens_cpu_upper_bound, rows),
        positions=_of(common.positions, tokens),
        _num_computed_tokens_cache=None,
        _token_to_req_indices_cache=None,
    )


def tokens_of(common: CommonAttentionMetadata, rows: torch.Tensor) -> torch.Tensor:
    """Return the indices of the requests' tokens in the batch, [num_tokens], int64."""
    lens, starts = common.naive_query_lens()[rows].long(), common.query_start_loc[rows].long()
    return torch.repeat_interleave(starts, lens) + _offsets(lens)


def rebuilt_context(
    common: CommonAttentionMetadata, hidden_states_per_block: int, block_size: int
) -> RebuiltContext:
    """Return where to read hidden states and where to write the keys and values recomputed from
    them.

    common: metadata of requests that keep hidden states.
    block_size: tokens of keys and values per page.
    """
    lens = common.seq_lens.long()
    row, position, slot = _places(common, hidden_states_per_block)
    num_blocks = (lens + block_size - 1) // block_size
    first_block = num_blocks.cumsum(0) - num_blocks
    kv_slot = first_block[row] * block_size + position
    is_new = position >= (lens - common.naive_query_lens())[row]
    blocks = torch.arange(int(num_blocks.max()), device=lens.device)
    return RebuiltContext(
        written=slot[is_new],
        made=kv_slot[is_new],
        before=Rebuilt(slot[~is_new], position[~is_new], kv_slot[~is_new]),
        block_table=(first_block[:, None] + blocks).to(common.block_table_tensor.dtype),
    )


def direct_context(common: CommonAttentionMetadata, hidden_states_per_block: int) -> DirectContext:
    """Return where to read the hidden states of ``common``, whose requests decode one token
    each."""
    _, _, slot = _places(common, hidden_states_per_block)
    lens = common.seq_lens
    rows = torch.arange(len(lens), device=lens.device)
    return DirectContext(
        lens=lens.tolist(),
        slots=slot,
        written=slot[lens.long().cumsum(0) - 1],
        decodes=Decodes(common.block_table_tensor, lens, rows, common.max_seq_len),
    )


def _places(
    common: CommonAttentionMetadata, hidden_states_per_block: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return each token's request, its position there, and the slot of its hidden state.

    The tokens are in order of their requests; each tensor is [num_tokens], int64.
    """
    lens = common.seq_lens.long()
    row = torch.repeat_interleave(torch.arange(len(lens), device=lens.device), lens)
    position = _offsets(lens)
    page = common.block_table_tensor[row, position // hidden_states_per_block].long()
    return row, position, page * hidden_states_per_block + position % hidden_states_per_block


def _offsets(lens: torch.Tensor) -> torch.Tensor:
    """Return 0 to each length, one after another."""
    ends = lens.cumsum(0)
    total = int(ends[-1])
    return torch.arange(total, device=lens.device) - torch.repeat_interleave(ends - lens, lens)


def _of(values: torch.Tensor | None, index: torch.Tensor) -> torch.Tensor | None:
    return None if values is None else values[index.to(values.device)]
