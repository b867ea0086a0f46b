"""A batch is divided into shares whose keys and values are recomputed in turn."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from macroserve.engine.vllm.hybrid import scratch_pages  # noqa: E402
from macroserve.engine.vllm.hybrid.scratch_pages import Scratch  # noqa: E402

pytestmark = pytest.mark.integration

BLOCK = 16
LONGEST = scratch_pages.MIN_TOKENS // 2


@given(st.lists(st.integers(1, LONGEST), max_size=40))
def test_scratch_shares_have_each_request_once_and_fit(seq_lens):
    room = Scratch(LONGEST, BLOCK)
    rows = torch.arange(len(seq_lens)) + 7
    shares = [share.tolist() for share in room.in_turn(rows, torch.tensor(seq_lens))]
    assert [row for share in shares for row in share] == rows.tolist()
    pages = [sum(-(-seq_lens[row - 7] // BLOCK) for row in share) for share in shares]
    assert all(0 < each <= room.num_pages for each in pages)
    assert all(a + b > room.num_pages for a, b in itertools.pairwise(pages))


def test_scratch_fits_the_longest_request():
    longest = 3 * scratch_pages.MIN_TOKENS + 1
    assert Scratch(longest, BLOCK).num_pages * BLOCK >= longest


def test_scratch_pages_have_the_layout_of_the_pool_and_are_numbers():
    pool = torch.empty(5, 2, BLOCK, 8).transpose(1, 2)
    pages = Scratch(1, BLOCK).pages(pool)
    assert pages.shape[1:] == pool.shape[1:]
    assert pages.stride() == pool.stride()
    assert not pages.any()
