"""Tests run real vLLM engines on the CPU, with the small built-in model."""

from pathlib import Path

import pytest

from macroserve.core.request import Slo
from macroserve.engine.settings import EngineSettings
from macroserve.local.tiny_model import ensure_tiny_model


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
