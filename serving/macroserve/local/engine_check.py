"""An engine that this machine cannot run is told before anything starts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from macroserve.api.manifest import ManifestError
from macroserve.core.model_config import num_layers_of
from macroserve.engine.json_file import json_object
from macroserve.engine.parallelism import check_devices, check_layers
from macroserve.engine.settings import EngineSettings
from macroserve.serving.ray.devices import Devices, devices_each


def check_parallel(settings: EngineSettings) -> None:
    """Check that this machine has the GPUs of one instance, and the model a layer for each stage.
    Raises ManifestError with a sentence if not.

    A model on the hub is checked when an instance loads it. Emulated engines have neither GPUs nor
    layers.
    """
    if settings.emulated:
        return
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
    """Return the configuration of a model's language part; empty where it is on the hub, or
    unreadable, which the engine tells."""
    try:
        config = json_object(Path(model) / "config.json")
    except ValueError:
        return {}
    found = config.get("text_config") or config
    return found if isinstance(found, dict) else {}
