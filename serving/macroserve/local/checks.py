"""Checks of a manifest against this machine and its files, before anything starts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from macroserve.api.manifest import Manifest, ManifestError
from macroserve.core.model_config import num_layers_of
from macroserve.engine.adapter_files import check_fit, rank_of
from macroserve.engine.json_file import json_object
from macroserve.engine.parallelism import check_devices, check_layers
from macroserve.engine.settings import EngineSettings
from macroserve.local.manifest_file import local_path


def check_adapters(manifest: Manifest, model: str) -> None:
    """Check that each adapter in a folder fits the model, and its rank the engine.

    Raises ManifestError with a sentence per problem.

    model: folder of the checkpoint, or its name on the hub, which instances check when they load
        it.
    """
    if manifest.spec.engine.type == "Emulated":
        return
    problems: list[str] = []
    for adapter in manifest.spec.model.adapters:
        folder = local_path(adapter.source, "spec.model.adapters")
        if folder is None:
            continue
        try:
            rank, limit = rank_of(folder), manifest.spec.engine.args.get("max_lora_rank")
            if limit is not None and rank > limit:
                raise ValueError(
                    f"its rank is {rank}, and spec.engine.args sets max_lora_rank to {limit}"
                )
            check_fit(folder, Path(model))
        except ValueError as error:
            problems.append(f"spec.model.adapters: {adapter.name} is {folder}, but {error}.")
    if problems:
        raise ManifestError(tuple(problems))


def check_parallel(settings: EngineSettings) -> None:
    """Check that this machine has the GPUs of an instance, and the model a layer per stage.

    Raises ManifestError otherwise. Models on the hub are checked by the instances that load them.
    """
    if settings.emulated:
        return
    # Imported late, because pods check only adapters and start faster without Ray.
    from macroserve.serving.ray.devices import Devices, devices_each

    num_stages = settings.pipeline_parallel
    try:
        if devices_each(settings):
            check_devices(settings.tensor_parallel, num_stages, Devices.of_machine().number)
        num_layers = num_layers_of(_text_config(settings.model))
        if isinstance(num_layers, int) and num_layers > 0:
            check_layers(num_stages, num_layers)
    except ValueError as error:
        raise ManifestError((f"{error}.",)) from error


def _text_config(model: str) -> Mapping[str, Any]:
    """Return the configuration of a model's language part.

    It is empty for models on the hub and unreadable ones, which the engine reports.
    """
    try:
        config = json_object(Path(model) / "config.json")
    except ValueError:
        return {}
    found = config.get("text_config") or config
    return found if isinstance(found, dict) else {}
