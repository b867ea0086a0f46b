"""The emulated engine refuses what it could never serve."""

from dataclasses import replace
from typing import Any

import pytest
from support.emulated_world import SETTINGS

from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.status import Pool
from macroserve.core.strategy import Ordering
from macroserve.core.tuning import Tuning
from macroserve.engine import emulated
from macroserve.engine.emulated import EmulatedEngine


def test_emulated_engine_with_too_small_a_cache_is_refused() -> None:
    with pytest.raises(ValueError, match=r"enlarge engine\.kvCacheMemory"):
        EmulatedEngine(replace(SETTINGS, kv_cache_bytes=1 << 28), Pool.LP)


def test_emulated_engine_with_given_memory_has_a_pool_of_that_size() -> None:
    # 32 layers, 32 heads of 128, K and V in fp16: 512 KiB a token.
    shape = EmulatedEngine(replace(SETTINGS, kv_cache_bytes=8 << 30), Pool.LP).shape
    assert shape.num_blocks * shape.block_size == (8 << 30) // (512 << 10)


def test_emulated_engine_schedules_by_the_settings_of_the_manifest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs: list[InstanceConfig] = []

    class Recorded(InstanceScheduler):
        def __init__(self, config: InstanceConfig, *args: Any) -> None:
            configs.append(config)
            super().__init__(config, *args)

    monkeypatch.setattr(emulated, "InstanceScheduler", Recorded)
    tuning = Tuning(lp_batch_size=3)
    settings = replace(SETTINGS, strategy="ascendra", ordering="SJF", tuning=tuning)
    EmulatedEngine(settings, Pool.HP)
    (config,) = configs
    assert (config.tuning, config.pool) == (tuning, Pool.HP)
    assert config.strategy.ordering is Ordering.SJF
