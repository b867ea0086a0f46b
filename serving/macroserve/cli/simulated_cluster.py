"""The cluster to simulate, from a manifest and the options of a deployment."""

import json
from pathlib import Path

from macroserve.api.manifest import Manifest
from macroserve.cli.deployment_options import DeploymentOptions
from macroserve.core.engine_sizes import sizes_on
from macroserve.core.shapes import ModelShape
from macroserve.local.manifest_file import model_folder
from macroserve.sim.hardware.devices import DEVICES
from macroserve.sim.hardware.links import LINKS
from macroserve.sim.hardware.models import MODELS, shape_of
from macroserve.sim.scenario import ClusterSpec


def cluster(manifest: Manifest, options: DeploymentOptions) -> ClusterSpec:
    """Return one cell of all instances; raise ValueError for a model that cannot be read."""
    engine = manifest.spec.engine
    device = DEVICES[options.device]
    sizes = sizes_on(device.name, device.memory_bytes).given(
        engine.block_size, engine.max_num_seqs, engine.max_batch_tokens
    )
    kv_bytes = None
    if engine.kv_cache_bytes is not None:
        kv_bytes = engine.kv_cache_bytes * engine.tensor_parallel * engine.pipeline_parallel
    return ClusterSpec(
        model=MODELS.get(options.model or "") or _read_shape(manifest, options.model),
        device=device,
        link=LINKS[options.link],
        ranks=engine.tensor_parallel,
        stages=engine.pipeline_parallel,
        num_instances=manifest.spec.instances,
        kv_bytes=kv_bytes,
        block_size=sizes.block_size,
        max_model_len=manifest.spec.model.max_model_len,
        max_num_seqs=-(-sizes.max_num_seqs // engine.pipeline_parallel),
        max_batch_tokens=sizes.max_batch_tokens,
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
