"""An engine with the hybrid cache reports its decision and its measurement."""

import asyncio
from dataclasses import replace

import pytest

from macroserve.api.handle import MAX_NAME_CHARS
from macroserve.core.latency import LatencyModel
from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment
from macroserve.local.tiny_model import ensure_tiny_model

prepare_environment()

from macroserve.engine.vllm.engine import VllmEngine  # noqa: E402

pytestmark = pytest.mark.integration


def started(settings: EngineSettings) -> tuple[str, dict]:
    """Return what the engine's shape says of the cache, and its latency model."""

    async def run() -> tuple[str, dict]:
        engine = VllmEngine(settings, Pool.LP)
        try:
            await engine.start()
            return engine.shape.hybrid_cache, await engine.command("latency")
        finally:
            await engine.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("architecture", ["llama", "opt"])
def test_engine_with_the_hybrid_cache_measures_rho_at_the_start(
    architecture: str, settings: EngineSettings
) -> None:
    model = str(ensure_tiny_model(architecture=architecture))
    said, latency = started(replace(settings, strategy="aptserve", model=model))
    assert said == "on: hidden states take 0.50 of the memory of keys and values"
    learned = LatencyModel(
        ModelShape(**latency["model"]), DeviceShape(**latency["device"]), latency["coefficients"]
    )
    # In the unit of what the latency model makes of the flops and bytes; the machine may be busy.
    assert 1e-3 < latency["rebuild_s_per_token"] / learned.rebuild_s(1) < 1e3
    # It is of a token, and not of the thousand that were timed, however slow the machine is.
    assert 0 < latency["rebuild_s_per_token"] < 2e-3


def test_engine_without_the_hybrid_cache_measures_no_rho(settings: EngineSettings) -> None:
    said, latency = started(settings)
    assert said.startswith("off: keys and values would have to be recomputed")
    assert len(said) < MAX_NAME_CHARS
    assert latency["rebuild_s_per_token"] is None


def test_engine_with_an_unsupported_cache_is_refused_before_loading(
    settings: EngineSettings,
) -> None:
    unsupported = replace(
        settings, hybrid_cache="On", strategy="aptserve", args={"enable_lora": True}
    )
    with pytest.raises(ValueError, match=r"spec\.engine\.hybridCache is On, but LoRA"):
        started(unsupported)
