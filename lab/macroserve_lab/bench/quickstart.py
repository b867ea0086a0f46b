"""The engine of the quickstart, which benchmarks measure."""

from macroserve.core.request import Slo
from macroserve.engine.settings import EngineSettings
from macroserve.local.tiny_model import ensure_tiny_model

NEVER_LATE = Slo(ttft_s=600.0, tpot_s=60.0)
"""Targets that every machine meets."""


def quickstart_settings(architecture: str = "llama") -> EngineSettings:
    """Return the settings of the quickstart's engine: vLLM on the CPU with the built-in model."""
    return EngineSettings(
        model=str(ensure_tiny_model(architecture=architecture)),
        served_name=f"tiny-{architecture}",
        max_model_len=2048,
        strategy="unified",
        slo=Slo(ttft_s=2.0, tpot_s=0.1),
        dtype="float32",
    )
