"""A batch divided by what its requests keep, in the terms of vLLM's attention."""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata

from macroserve.kernels.decodes import Decodes


@dataclass(frozen=True, slots=True)
class Part:
    """Requests of a batch that keep the same. tokens: theirs among the batch's, in its order.
    metadata: what vLLM's attention needs to know of them alone. slots: where the keys and values
    of their tokens go."""

    tokens: torch.Tensor | slice
    metadata: Any
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Tokens whose keys and values are made again: the slots of their hidden states, where they are
    in their requests, and the slots of what is made. Each [num_tokens], int64."""

    read: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class RebuiltContext:
    """Where the tokens of requests are that keep hidden states, and where their keys and values go
    for the time of one layer.

    written, made: slots of the hidden states of this step's tokens, and of their keys and values.
    before: all others. block_table: of the keys and values.
    """

    written: torch.Tensor
    made: torch.Tensor
    before: Rebuilt
    block_table: torch.Tensor


@dataclass(frozen=True, slots=True)
class RebuiltPart(Part):
    """Those whose keys and values are made again. slots: of these, which last for one layer."""

    context: RebuiltContext


@dataclass(frozen=True, slots=True)
class DirectContext:
    """Where the hidden states are of requests that decode a token each.

    lens: tokens of each request, this step's included. slots: of all of them, request by request.
    written: of each request's last. decodes: the same for our kernels, all of their rows.
    """

    lens: list[int]
    slots: torch.Tensor
    written: torch.Tensor
    decodes: Decodes


@dataclass(frozen=True, slots=True)
class DirectPart:
    """Requests that decode a token each, whose hidden states are attended to as they are. tokens:
    theirs among the batch's."""

    tokens: torch.Tensor
    context: DirectContext


def of_requests(
    common: CommonAttentionMetadata, rows: torch.Tensor, tokens: torch.Tensor
) -> CommonAttentionMetadata:
    """Of some requests alone, as if the batch had no others. rows: [num_requests], int64.
    tokens: as ``tokens_of`` has them."""
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
    """[num_tokens], int64: the tokens of these requests among the batch's."""
    lens, starts = common.naive_query_lens()[rows].long(), common.query_start_loc[rows].long()
    return torch.repeat_interleave(starts, lens) + _offsets(lens)


def rebuilt_context(
    common: CommonAttentionMetadata, hidden_states_per_block: int, block_size: int
) -> RebuiltContext:
    """Return where to read hidden states and where to write the keys and values made of them.

    common: of requests that keep hidden states. block_size: keys and values to a page.
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
    """common: of requests that decode a token each and keep hidden states."""
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
    """Of all tokens, request by request: their requests, where they are in them, and the slots of
    their hidden states. Each [num_tokens], int64."""
    lens = common.seq_lens.long()
    row = torch.repeat_interleave(torch.arange(len(lens), device=lens.device), lens)
    position = _offsets(lens)
    page = common.block_table_tensor[row, position // hidden_states_per_block].long()
    return row, position, page * hidden_states_per_block + position % hidden_states_per_block


def _offsets(lens: torch.Tensor) -> torch.Tensor:
    """0 to each length, one after another."""
    ends = lens.cumsum(0)
    total = int(ends[-1])
    return torch.arange(total, device=lens.device) - torch.repeat_interleave(ends - lens, lens)


def _of(values: torch.Tensor | None, index: torch.Tensor) -> torch.Tensor | None:
    return None if values is None else values[index.to(values.device)]
