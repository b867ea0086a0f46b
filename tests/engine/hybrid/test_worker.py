"""The memory in which keys and values are recomputed is taken before the pool's."""

from types import SimpleNamespace

import pytest

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from macroserve.engine.vllm.hybrid import worker  # noqa: E402
from macroserve.engine.vllm.hybrid.worker import HybridWorker  # noqa: E402

pytestmark = pytest.mark.integration

FREE_BYTES = 10**9


@pytest.mark.parametrize(
    ("asked_bytes", "pool_bytes"),
    [
        pytest.param(None, FREE_BYTES - 4 * 512 * 32768, id="as-vllm-finds"),
        pytest.param(FREE_BYTES, FREE_BYTES, id="as-asked"),
    ],
)
def test_memory_of_the_pool_leaves_room_for_rebuilt_keys(monkeypatch, asked_bytes, pool_bytes):
    """8,192 tokens are recomputed at a time, in 512 pages."""
    page = worker.FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=64, dtype=None)
    monkeypatch.setattr(worker.FullAttentionSpec, "page_size_bytes", 32768)
    monkeypatch.setattr(worker.Worker, "get_kv_cache_spec", lambda self: {"layer": page})
    monkeypatch.setattr(worker.Worker, "determine_available_memory", lambda self: FREE_BYTES)
    layer = SimpleNamespace(impl=SimpleNamespace())
    worker_ = HybridWorker.__new__(HybridWorker)
    worker_.parallel_config = SimpleNamespace(tensor_parallel_size=1)
    worker_.model_config = SimpleNamespace(max_model_len=2048, get_hidden_size=lambda: 256)
    worker_.cache_config = SimpleNamespace(kv_cache_memory_bytes=asked_bytes)
    context = SimpleNamespace(static_forward_context={"layer": layer})
    worker_.vllm_config = SimpleNamespace(compilation_config=context)
    worker_.get_kv_cache_spec()
    assert worker_.determine_available_memory() == pool_bytes
    assert layer.impl.scratch.num_pages == 512
