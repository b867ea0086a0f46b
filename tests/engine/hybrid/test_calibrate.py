"""The calibration measures the cost of hidden states on layers whose time is simulated."""

from types import SimpleNamespace

import pytest
import torch

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from macroserve.engine.vllm.hybrid import calibrate  # noqa: E402
from macroserve.engine.vllm.hybrid.scratch_pages import Scratch  # noqa: E402

pytestmark = pytest.mark.integration

BLOCK, HIDDEN_SIZE = 32, 16
NUM_PAGES = 6
"""Pages of the pool, fewer than the timed tokens would fill."""
MAX_MODEL_LEN = 1024


class FakeLayer:
    """Recomputing its keys and values takes a launch, and a time for each token."""

    def __init__(self, clock: SimpleNamespace, token_us: float, launch_ms: float = 3) -> None:
        self.kv_cache = torch.zeros(NUM_PAGES, 1, BLOCK, 2 * HIDDEN_SIZE)
        pages = self.kv_cache.view(NUM_PAGES, 2 * BLOCK, HIDDEN_SIZE)
        self.impl = SimpleNamespace(
            hidden=SimpleNamespace(direct=None, pages=lambda cache: pages), rebuild=self._rebuild
        )
        self.num_heads, self.head_size = 1, HIDDEN_SIZE
        self.delay_ms = iter(())
        self.longest = 0
        self._clock, self._token_us, self._launch_ms = clock, token_us, launch_ms

    def _rebuild(self, layer, cache, rebuilt, scratch) -> None:
        assert layer is self and cache is self.kv_cache
        assert int(rebuilt.read.max()) < NUM_PAGES * 2 * BLOCK, "a slot that the pool has not"
        assert len(set(rebuilt.slots.tolist())) == len(rebuilt.slots)
        assert int(rebuilt.slots.max()) < len(scratch) * BLOCK, "a slot that the scratch has not"
        self.longest = max(self.longest, int(rebuilt.positions.max()) + 1)
        taken_ms = self._launch_ms + len(rebuilt.read) * self._token_us / 1e3
        self._clock.now_s += (taken_ms + next(self.delay_ms, 0)) / 1e3


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(calibrate, "perf_counter", lambda: clock.now_s)
    return clock


def test_rho_of_layers_is_the_time_of_a_token_without_the_launches(clock):
    layers = [FakeLayer(clock, 5), FakeLayer(clock, 2)]
    rho_s = calibrate.measure_rho(layers, Scratch(MAX_MODEL_LEN, BLOCK), MAX_MODEL_LEN)
    assert rho_s == pytest.approx(7e-6)


def test_rho_on_a_busy_machine_is_that_of_the_shortest_trials(clock):
    layer = FakeLayer(clock, 5)
    others_ms = [500.0] * (calibrate.NUM_TRIALS - 1)
    layer.delay_ms = iter([*others_ms, 0, 0, *others_ms])
    rho_s = calibrate.measure_rho([layer], Scratch(MAX_MODEL_LEN, BLOCK), MAX_MODEL_LEN)
    assert rho_s == pytest.approx(5e-6)


@pytest.mark.parametrize("max_model_len", [50, 20])
def test_rho_of_a_model_with_few_positions_uses_no_others(clock, max_model_len):
    layer = FakeLayer(clock, 5)
    rho_s = calibrate.measure_rho([layer], Scratch(MAX_MODEL_LEN, BLOCK), max_model_len)
    assert rho_s == pytest.approx(5e-6)
    assert layer.longest == max_model_len


def test_rho_where_the_larger_batch_takes_less_is_zero(clock):
    layer = FakeLayer(clock, 0)
    layer.delay_ms = iter([0.0] * calibrate.NUM_TRIALS + [1.0] * calibrate.NUM_TRIALS)
    assert calibrate.measure_rho([layer], Scratch(MAX_MODEL_LEN, BLOCK), MAX_MODEL_LEN) == 0
