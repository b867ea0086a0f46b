"""The model to simulate, by its name or by the ``config.json`` of its checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from macroserve.api.manifest import Manifest
from macroserve.core.hybrid_cache import HybridCacheFacts
from macroserve.core.shapes import ModelShape
from macroserve.engine.json_file import json_object
from macroserve.local.manifest_file import model_folder
from macroserve.sim.hardware.models import ARCHITECTURES, MODELS, shape_of

UNNAMED = "a model without an architecture"


class SimulatedModel(NamedTuple):
    """The model's shape, and the facts of it that decide about hidden states."""

    shape: ModelShape
    facts: HybridCacheFacts
    """Facts of the model alone, in an engine of one device."""


def read_model(manifest: Manifest, model: str | None) -> SimulatedModel:
    """Return the model of ``--model``, else the manifest's.

    model: name in ``MODELS``, or a folder with a ``config.json``.

    Raises ValueError for a model that cannot be read.
    """
    if shape := MODELS.get(model or ""):
        return _with_facts(shape, {"architectures": [ARCHITECTURES[model or ""]]})
    path = Path(model or model_folder(manifest)) / "config.json"
    try:
        config = json_object(path)
        return _with_facts(shape_of(config), config)
    except ValueError as error:
        raise ValueError(
            f"the model's shape cannot be read from {path} ({error}): name one with --model, a "
            f"folder with a config.json or one of {', '.join(MODELS)}"
        ) from None


def _with_facts(shape: ModelShape, config: Mapping[str, Any]) -> SimulatedModel:
    text: Mapping[str, Any] = config.get("text_config") or config
    facts = HybridCacheFacts(
        architecture=next(iter(config.get("architectures") or ()), UNNAMED),
        hidden_size=shape.hidden_size,
        has_latent=shape.latent is not None,
        has_window=shape.window is not None,
        has_dual_chunks=bool(text.get("dual_chunk_attention_config")),
        is_quantized=bool(text.get("quantization_config") or config.get("quantization_config")),
    )
    return SimulatedModel(shape, facts)
