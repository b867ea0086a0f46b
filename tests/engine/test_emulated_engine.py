"""The emulated engine refuses what it could never serve."""

from dataclasses import replace

import pytest
from support.emulated_world import SETTINGS

from macroserve.core.status import Pool
from macroserve.engine.emulated import EmulatedEngine


def test_emulated_engine_with_too_small_a_cache_is_refused() -> None:
    with pytest.raises(ValueError, match=r"enlarge engine\.kvCacheMemory"):
        EmulatedEngine(replace(SETTINGS, kv_cache_bytes=1 << 28), Pool.LP)


def test_emulated_engine_with_given_memory_has_a_pool_of_that_size() -> None:
    # 32 layers, 32 heads of 128, K and V in fp16: 512 KiB a token.
    shape = EmulatedEngine(replace(SETTINGS, kv_cache_bytes=8 << 30), Pool.LP).shape
    assert shape.num_blocks * shape.block_size == (8 << 30) // (512 << 10)
