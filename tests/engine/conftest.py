"""Tests run real vLLM engines on the CPU, with the small built-in model."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.frozen_heap import frozen_heap
from support.small_models import build

from macroserve.core.request import Slo
from macroserve.engine.settings import EngineSettings
from macroserve.local.tiny_model import ensure_tiny_model

__all__ = ["frozen_heap"]


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    return ensure_tiny_model()


@pytest.fixture(scope="session")
def settings(tiny_model: Path) -> EngineSettings:
    return EngineSettings(
        model=str(tiny_model),
        served_name="tiny",
        max_model_len=1024,
        strategy="unified",
        dtype="float32",
        slo=Slo(ttft_s=2.0, tpot_s=0.1),
        kv_cache_bytes=64 << 20,
        max_batch_tokens=512,
    )


@pytest.fixture(scope="session")
def small_settings(tmp_path_factory: pytest.TempPathFactory) -> EngineSettings:
    """Return settings of an engine that runs step by step in a test's process
    (``support.offline_engine``)."""
    return EngineSettings(
        model=str(build(tmp_path_factory.mktemp("llama"), "llama")),
        served_name="llama",
        max_model_len=1024,
        strategy="unified",
        dtype="float32",
        # Loose targets: nothing is late, whatever the test machine does.
        slo=Slo(ttft_s=600.0, tpot_s=60.0),
        max_batch_tokens=512,
        hybrid_cache="Off",
        args={"skip_tokenizer_init": True},
    )


@pytest.fixture(params=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Let the engines of a test wait for each step, or schedule ahead."""
    from macroserve_lab.bench.offline_engine import forced_async

    ahead = request.param == "async"
    with forced_async() if ahead else nullcontext():
        yield ahead
