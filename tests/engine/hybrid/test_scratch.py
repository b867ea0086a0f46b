"""Shares of a batch whose keys and values are made one after another."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from macroserve.engine.vllm.hybrid import scratch  # noqa: E402
from macroserve.engine.vllm.hybrid.scratch import Scratch  # noqa: E402
from macroserve.engine.vllm.hybrid.spec import HybridSpec  # noqa: E402
from macroserve.engine.vllm.hybrid.worker import HybridWorker, Worker  # noqa: E402

pytestmark = pytest.mark.integration

BLOCK = 16
LONGEST = scratch.MIN_TOKENS // 2


@given(st.lists(st.integers(1, LONGEST), max_size=40))
def test_each_request_is_in_one_share_that_fits(seq_lens):
    room = Scratch(LONGEST, BLOCK)
    rows = torch.arange(len(seq_lens)) + 7
    shares = [share.tolist() for share in room.in_turn(rows, torch.tensor(seq_lens))]
    assert [row for share in shares for row in share] == rows.tolist()
    pages = [sum(-(-seq_lens[row - 7] // BLOCK) for row in share) for share in shares]
    assert all(0 < each <= room.num_pages for each in pages)
    assert all(a + b > room.num_pages for a, b in itertools.pairwise(pages))


def test_the_longest_request_fits():
    longest = 3 * scratch.MIN_TOKENS + 1
    assert Scratch(longest, BLOCK).num_pages * BLOCK >= longest


def test_pages_are_laid_out_as_the_pool_and_are_numbers():
    pool = torch.empty(5, 2, BLOCK, 8).transpose(1, 2)
    pages = Scratch(1, BLOCK).pages(pool)
    assert pages.shape[1:] == pool.shape[1:]
    assert pages.stride() == pool.stride()
    assert not pages.any()


@pytest.mark.parametrize(
    ("pool_bytes", "ranks", "kept_bytes"),
    [
        # 16,384 tokens: keys and values of 2 KiB three times, hidden states of 1 KiB twice.
        pytest.param(None, 1, 16384 * 8 * 1024, id="measured"),
        # A rank's share of both, and the hidden states of both ranks.
        pytest.param(None, 2, 16384 * (6 + 3) * 1024, id="two-ranks"),
        pytest.param(1 << 30, 1, 0, id="given"),
    ],
)
def test_memory_for_it_is_kept_from_the_pool(monkeypatch, pool_bytes, ranks, kept_bytes):
    spec = HybridSpec(
        block_size=BLOCK, num_kv_heads=4, head_size=64, dtype=torch.float32, hidden_size=256
    )
    monkeypatch.setattr(Worker, "determine_available_memory", lambda self: 1 << 30)
    monkeypatch.setattr(HybridWorker, "get_kv_cache_spec", lambda self: {"layer": spec})
    worker = HybridWorker.__new__(HybridWorker)
    worker.cache_config = SimpleNamespace(kv_cache_memory_bytes=pool_bytes)
    worker.vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=LONGEST),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
    )
    assert worker.determine_available_memory() == (1 << 30) - kept_bytes
