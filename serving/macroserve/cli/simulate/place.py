"""Where a manifest's instances would run: the model's shape and the devices, by their names."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from macroserve.api.manifest import Manifest
from macroserve.core.shapes import ModelShape
from macroserve.local.manifest_file import model_folder
from macroserve.sim.hardware.devices import DEVICES
from macroserve.sim.hardware.links import LINKS
from macroserve.sim.hardware.models import MODELS, shape_of
from macroserve.sim.scenario import ClusterSpec

T = TypeVar("T")


def cluster(manifest: Manifest, model: str | None, device: str, link: str) -> ClusterSpec:
    """One cell of all its instances. Raises ValueError for names that nobody knows."""
    engine = manifest.spec.engine
    kv_bytes = None
    if "kv_cache_bytes" in engine.model_fields_set:
        kv_bytes = engine.kv_cache_bytes * engine.tensor_parallel * engine.pipeline_parallel
    return ClusterSpec(
        model=MODELS[model] if model in MODELS else _read_shape(manifest, model),
        device=_named("device", device, DEVICES),
        link=_named("link", link, LINKS),
        ranks=engine.tensor_parallel,
        stages=engine.pipeline_parallel,
        num_instances=manifest.spec.instances,
        kv_bytes=kv_bytes,
        block_size=engine.block_size,
        max_model_len=manifest.spec.model.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        max_batch_tokens=engine.max_batch_tokens,
    )


def _read_shape(manifest: Manifest, model: str | None) -> ModelShape:
    path = Path(model or model_folder(manifest)) / "config.json"
    try:
        return shape_of(json.loads(path.read_text()))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError(
            f"the model's shape cannot be read from {path}: name one with --model, a folder with a "
            f"config.json or one of {', '.join(MODELS)}"
        ) from None


def _named(kind: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}, known are: {', '.join(known)}")
    return known[name]
