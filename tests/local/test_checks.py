"""An engine that this machine cannot run is refused before the start."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.deployment import free_port
from support.manifests import edited

from macroserve.api.manifest import ManifestError, parse
from macroserve.engine.settings import EngineSettings
from macroserve.local import up
from macroserve.local.checks import check_parallel
from macroserve.local.manifest_file import engine_settings
from macroserve.serving.ray.devices import Devices

LAYERS = {"num_hidden_layers": 4}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this be a machine with two GPUs and vLLM's build for them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr("macroserve.serving.ray.devices.is_built_for_gpus", lambda: True)


def settings(tmp_path: Path, config: Any, *edits: tuple[str, object]) -> EngineSettings:
    """Return the settings of a manifest whose model has this configuration."""
    text = config if isinstance(config, str) else json.dumps(config)
    (tmp_path / "config.json").write_text(text)
    manifest = parse(edited(("spec.model.source", str(tmp_path)), *edits))
    return engine_settings(manifest, str(tmp_path))


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("tensor", "pipeline", "says"),
    [
        (2, 1, None),
        (1, 2, None),
        (4, 1, "pipelineParallel is 4, must be at most the number of GPUs here, which is 2."),
        (2, 2, "pipelineParallel is 4, must be at most the number of GPUs here, which is 2."),
    ],
)
def test_instance_needs_no_more_gpus_than_the_machine_has(
    tmp_path: Path, tensor: int, pipeline: int, says: str | None
) -> None:
    edits = ("spec.engine.tensorParallel", tensor), ("spec.engine.pipelineParallel", pipeline)
    wanted = settings(tmp_path, LAYERS, *edits)
    if says is None:
        check_parallel(wanted)
        return
    with pytest.raises(ManifestError) as refused:
        check_parallel(wanted)
    assert str(refused.value).endswith(says)


def test_instance_on_cpus_needs_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Devices, "of_machine", lambda: Devices((), ""))
    check_parallel(settings(tmp_path, LAYERS, ("spec.engine.tensorParallel", 8)))


@pytest.mark.parametrize(
    ("config", "fits"),
    [
        (LAYERS, False),
        ({"text_config": LAYERS}, False),
        ({"n_layer": 4}, False),
        ({"num_hidden_layers": 5}, True),
        ({}, True),
        ("[]", True),
        ({"text_config": "?"}, True),
        ({"num_hidden_layers": "4"}, True),
        ("no JSON", True),
    ],
)
def test_pipeline_has_no_more_stages_than_layers_that_the_checkpoint_tells(
    tmp_path: Path, config: Any, fits: bool
) -> None:
    wanted = settings(tmp_path, config, ("spec.engine.pipelineParallel", 5))
    if fits:
        check_parallel(wanted)
        return
    with pytest.raises(ManifestError, match=r"^spec\.engine\.pipelineParallel is 5, .* is 4\.$"):
        check_parallel(wanted)


@pytest.mark.usefixtures("gpus")
def test_emulated_engine_is_divided_as_told(tmp_path: Path) -> None:
    edits = ("spec.engine.type", "Emulated"), ("spec.engine.pipelineParallel", 5)
    check_parallel(settings(tmp_path, LAYERS, *edits))


def test_up_with_too_long_a_pipeline_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object) -> None:
        raise AssertionError("it starts")

    (tmp_path / "config.json").write_text(json.dumps(LAYERS))
    path = tmp_path / "m.yaml"
    edits = ("spec.model.source", str(tmp_path)), ("spec.engine.pipelineParallel", 5)
    path.write_text(json.dumps(edited(*edits)))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv(up.FILE_VARIABLE, "")
    monkeypatch.setattr(up, "Up", started)
    with pytest.raises(ManifestError, match="pipelineParallel is 5"):
        up.run(up.UpOptions(path, "127.0.0.1", free_port(), None, None), Console(quiet=True))
