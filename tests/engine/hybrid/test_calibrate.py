"""The calibration measures the cost of hidden states on layers whose time is simulated."""

from types import SimpleNamespace

import pytest
import torch

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from macroserve.engine.vllm.hybrid import calibrate  # noqa: E402

pytestmark = pytest.mark.integration

BLOCK, HIDDEN_SIZE = 32, 16
NUM_PAGES = 6
"""Pages of the pool, fewer than the timed tokens would fill."""


class FakeLayer:
    """Keys and values of it are made again in the milliseconds of one trial after another."""

    def __init__(self, clock: SimpleNamespace, *trials_ms: float) -> None:
        self.kv_cache = torch.zeros(NUM_PAGES, 1, BLOCK, 2 * HIDDEN_SIZE)
        pages = self.kv_cache.view(NUM_PAGES, 2 * BLOCK, HIDDEN_SIZE)
        self.impl = SimpleNamespace(
            hidden=SimpleNamespace(direct=None, pages=lambda cache: pages), rebuild=self._rebuild
        )
        self._clock = clock
        self._trials_ms = iter(trials_ms)

    def _rebuild(self, layer, cache, rebuilt, scratch) -> None:
        assert layer is self and cache is self.kv_cache
        assert int(rebuilt.read.max()) < NUM_PAGES * 2 * BLOCK, "a slot that the pool has not"
        self._clock.now_s += next(self._trials_ms) / 1e3


def test_rho_is_the_shortest_trial_of_all_layers_per_token(monkeypatch):
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(calibrate, "perf_counter", lambda: clock.now_s)
    # A machine that is busy with something else but for one trial, in which layers take 5 + 2 ms.
    others = [500.0] * (calibrate.NUM_TRIALS - 1)
    layers = [FakeLayer(clock, *others, 5), FakeLayer(clock, 1, *others[1:], 2)]
    measured_s = calibrate.measure_rho(layers, BLOCK)
    assert measured_s == pytest.approx(7e-3 / (calibrate.NUM_REQUESTS * calibrate.REQUEST_TOKENS))
