"""The parts of a batch by kind of cache, as metadata of vLLM's attention."""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata

from macroserve.kernels.decodes import Decodes


@dataclass(frozen=True, slots=True)
class Part:
    """Requests of a batch with one kind of cache."""

    tokens: torch.Tensor | slice
    """Indices of their tokens in the batch, in order."""
    metadata: Any
    """vLLM's attention metadata of these requests."""
    slots: torch.Tensor
    """Slots of their keys and values."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Tokens whose keys and values are recomputed; each tensor is [num_tokens], int64."""

    read: torch.Tensor
    """Slots of the hidden states."""
    positions: torch.Tensor
    """Positions of the tokens in their requests."""
    slots: torch.Tensor
    """Slots of the recomputed keys and values."""


@dataclass(frozen=True, slots=True)
class RebuiltContext:
    """Slots of hidden states, and of their recomputed keys and values."""

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
    """Requests whose keys and values are recomputed for each layer."""

    context: RebuiltContext


@dataclass(frozen=True, slots=True)
class DirectContext:
    """Slots of the hidden states of requests that decode one token each."""

    lens: list[int]
    """Tokens of each request, this step's included."""
    slots: torch.Tensor
    """Slots of all those tokens, request by request."""
    written: torch.Tensor
    """Slot of each request's last token."""
    decodes: Decodes
    """The same in the form of the Triton kernels."""


@dataclass(frozen=True, slots=True)
class DirectPart:
    """Decoding requests whose hidden states attention reads directly."""

    tokens: torch.Tensor
    """Indices of their tokens in the batch."""
    context: DirectContext


def query_lens_of(common: CommonAttentionMetadata) -> torch.Tensor:
    """Return each request's number of tokens in this step, [num_requests] on the host."""
    return common.query_start_loc_cpu.diff()


def seq_lens_of(common: CommonAttentionMetadata) -> torch.Tensor:
    """Return each request's length after this step, [num_requests] on the host. vLLM's upper bound
    is exact without speculative decoding, which the hybrid cache excludes."""
    assert common.seq_lens_cpu_upper_bound is not None
    return common.seq_lens_cpu_upper_bound


def part_of(
    common: CommonAttentionMetadata, rows: torch.Tensor
) -> tuple[torch.Tensor, CommonAttentionMetadata]:
    """Return the indices in the batch of some requests' tokens, [num_tokens], and the metadata of
    these requests alone.

    rows: the requests, [num_requests] on the host, int64.
    """
    query_lens, seq_lens = query_lens_of(common)[rows], seq_lens_of(common)[rows]
    starts = common.query_start_loc_cpu[rows].long()
    tokens = torch.repeat_interleave(starts, query_lens) + _offsets(query_lens)
    start = torch.zeros(len(rows) + 1, dtype=common.query_start_loc.dtype)
    torch.cumsum(query_lens, 0, out=start[1:])
    device = common.seq_lens.device
    rows_there, tokens_there = _sent(rows, device), _sent(tokens, device)

    def of(values: torch.Tensor | None, here: torch.Tensor, there: torch.Tensor) -> Any:
        return None if values is None else values[here if values.device.type == "cpu" else there]

    return tokens_there, common.replace(
        query_start_loc=_sent(start, device),
        query_start_loc_cpu=start,
        seq_lens=common.seq_lens[rows_there],
        num_reqs=len(rows),
        num_actual_tokens=len(tokens),
        max_query_len=int(query_lens.max()),
        max_seq_len=int(seq_lens.max()),
        block_table_tensor=common.block_table_tensor[rows_there],
        slot_mapping=common.slot_mapping[tokens_there],
        is_prefilling=of(common.is_prefilling, rows, rows_there),
        seq_lens_cpu_upper_bound=seq_lens,
        positions=of(common.positions, tokens, tokens_there),
        _num_computed_tokens_cache=None,
        _token_to_req_indices_cache=None,
    )


def rebuilt_context(
    common: CommonAttentionMetadata, hidden_states_per_block: int, block_size: int
) -> RebuiltContext:
    """Return the slots for requests whose keys and values are recomputed from hidden states.

    common: metadata of these requests.
    block_size: tokens of keys and values per page.
    """
    lens, device = seq_lens_of(common).long(), common.seq_lens.device
    row, position = _places(lens)
    num_blocks = (lens + block_size - 1) // block_size
    first_block = num_blocks.cumsum(0) - num_blocks
    kv_slot = first_block[row] * block_size + position
    new = position >= (lens - query_lens_of(common))[row]
    before = ~new
    blocks = first_block[:, None] + torch.arange(int(num_blocks.max()))
    return RebuiltContext(
        written=_slots(common, row[new], position[new], hidden_states_per_block),
        made=_sent(kv_slot[new], device),
        before=Rebuilt(
            _slots(common, row[before], position[before], hidden_states_per_block),
            _sent(position[before], device),
            _sent(kv_slot[before], device),
        ),
        block_table=_sent(blocks.to(common.block_table_tensor.dtype), device),
    )


def direct_context(common: CommonAttentionMetadata, hidden_states_per_block: int) -> DirectContext:
    """Return the slots of the hidden states of requests that decode one token each."""
    lens, device = seq_lens_of(common).long(), common.seq_lens.device
    slots = _slots(common, *_places(lens), hidden_states_per_block)
    return DirectContext(
        lens=lens.tolist(),
        slots=slots,
        written=slots[_sent(lens.cumsum(0) - 1, device)],
        decodes=Decodes(
            common.block_table_tensor,
            common.seq_lens,
            torch.arange(len(lens), device=device),
            common.max_seq_len,
        ),
    )


def _places(lens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the request and the position of each token of requests with ``lens``, in order, each
    [num_tokens] on the host, int64."""
    return torch.repeat_interleave(torch.arange(len(lens)), lens), _offsets(lens)


def _slots(
    common: CommonAttentionMetadata,
    row: torch.Tensor,
    position: torch.Tensor,
    hidden_states_per_block: int,
) -> torch.Tensor:
    """Return the slots of tokens' hidden states, [num_tokens], int64."""
    device = common.block_table_tensor.device
    row, position = _sent(row, device), _sent(position, device)
    page = common.block_table_tensor[row, position // hidden_states_per_block].long()
    return page * hidden_states_per_block + position % hidden_states_per_block


def _offsets(lens: torch.Tensor) -> torch.Tensor:
    """Return ``range(length)`` for each length, concatenated."""
    ends = lens.cumsum(0)
    return torch.arange(int(ends[-1])) - torch.repeat_interleave(ends - lens, lens)


def _sent(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy values from the host to the device without waiting."""
    if device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)
