"""A step's plan of the hybrid cache never waits for the device."""

import pytest
import torch

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.v1.attention.backend import CommonAttentionMetadata  # noqa: E402

from macroserve.engine.vllm.hybrid.metadata import (  # noqa: E402
    direct_context,
    part_of,
    rebuilt_context,
)

pytestmark = pytest.mark.integration

QUERY_LENS = [1, 20, 1, 7]
SEQ_LENS = [40, 20, 70, 33]
BLOCK, STATES_PER_BLOCK = 16, 32


def batch(device: str) -> CommonAttentionMetadata:
    """Return requests that decode, begin, decode and go on, with pages of their own.

    Values on ``meta`` exist nowhere: code that reads one, as the host does when it waits for a
    device, raises an error.
    """
    start = torch.tensor([0, *torch.tensor(QUERY_LENS).cumsum(0).tolist()], dtype=torch.int32)
    num_tokens = int(start[-1])
    seq_lens = torch.tensor(SEQ_LENS, dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=start.to(device),
        query_start_loc_cpu=start,
        seq_lens=seq_lens.to(device),
        seq_lens_cpu_upper_bound=seq_lens,
        num_reqs=len(SEQ_LENS),
        num_actual_tokens=num_tokens,
        max_query_len=max(QUERY_LENS),
        max_seq_len=max(SEQ_LENS),
        block_table_tensor=torch.arange(len(SEQ_LENS) * 3, dtype=torch.int32)
        .view(len(SEQ_LENS), 3)
        .to(device),
        slot_mapping=torch.arange(num_tokens).to(device),
        positions=torch.arange(num_tokens).to(device),
        is_prefilling=torch.tensor([False, True, False, False]),
    )


def test_contexts_of_a_step_read_no_value_from_the_device():
    common = batch("meta")
    tokens, some = part_of(common, torch.tensor([1, 3]))
    context = rebuilt_context(some, STATES_PER_BLOCK, BLOCK)
    _, others = part_of(common, torch.tensor([0, 2]))
    direct = direct_context(others, STATES_PER_BLOCK)
    assert tokens.shape == context.written.shape == context.made.shape == (27,)
    assert context.before.read.shape == context.before.slots.shape == (26,)
    assert direct.lens == [40, 70]
    assert direct.slots.shape == (110,)


def test_part_of_a_batch_is_as_if_it_had_no_others():
    common = batch("cpu")
    tokens, some = part_of(common, torch.tensor([1, 3]))
    assert tokens.tolist() == [*range(1, 21), *range(22, 29)]
    assert some.query_start_loc.tolist() == some.query_start_loc_cpu.tolist() == [0, 20, 27]
    assert some.seq_lens.tolist() == [20, 33]
    assert (some.num_reqs, some.num_actual_tokens) == (2, 27)
    assert (some.max_query_len, some.max_seq_len) == (20, 33)
    assert some.block_table_tensor.tolist() == [[3, 4, 5], [9, 10, 11]]
    assert some.slot_mapping.tolist() == some.positions.tolist() == tokens.tolist()
    assert some.is_prefilling.tolist() == [True, False]


def test_rebuilt_context_has_earlier_tokens_apart_from_those_of_the_step():
    _, some = part_of(batch("cpu"), torch.tensor([1, 3]))
    context = rebuilt_context(some, STATES_PER_BLOCK, BLOCK)
    begins, goes_on = 3 * STATES_PER_BLOCK, 9 * STATES_PER_BLOCK
    assert context.written.tolist() == [
        *range(begins, begins + 20),
        *range(goes_on + 26, goes_on + 32),
        10 * STATES_PER_BLOCK,
    ]
    assert context.before.read.tolist() == list(range(goes_on, goes_on + 26))
    assert context.before.positions.tolist() == list(range(26))
    # The first request's 20 tokens take two blocks.
    assert context.made.tolist() == [*range(20), *range(32 + 26, 32 + 33)]
    assert context.before.slots.tolist() == list(range(32, 32 + 26))
    assert context.block_table.tolist() == [[0, 1, 2], [2, 3, 4]]


def test_rebuilt_context_of_a_request_that_fills_its_blocks_has_no_more_of_them():
    _, some = part_of(batch("cpu"), torch.tensor([1, 3]))
    context = rebuilt_context(some, STATES_PER_BLOCK, block_size=20)
    assert context.made.tolist() == [*range(20), *range(20 + 26, 20 + 33)]
    assert context.block_table.tolist() == [[0, 1], [1, 2]]


def test_direct_context_reads_all_tokens_and_writes_the_last():
    _, some = part_of(batch("cpu"), torch.tensor([0, 2]))
    context = direct_context(some, STATES_PER_BLOCK)
    assert context.slots.tolist() == [*range(40), *range(192, 192 + 70)]
    assert context.written.tolist() == [39, 192 + 69]
    assert context.decodes.seq_lens.tolist() == [40, 70]
    assert context.decodes.block_table.tolist() == [[0, 1, 2], [6, 7, 8]]
