"""An adapter that does not fit its model is told before anything starts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.manifests import edited

from macroserve.api.manifest import ManifestError, parse
from macroserve.engine.adapter_files import rank_of
from macroserve.local.checks import check_adapters
from macroserve.local.manifest_file import engine_settings

LAYER = "model.layers.0.self_attn.q_proj"
CONFIG = {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"]}


def write(
    folder: Path,
    module: str = LAYER,
    sizes: tuple[int, int] = (64, 32),
    config: Any = CONFIG,
) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(
        config if isinstance(config, str) else json.dumps(config)
    )
    num_inputs, num_outputs = sizes
    name = f"base_model.model.{module}"
    weights = {
        f"{name}.lora_A.weight": np.zeros((8, num_inputs), np.float32),
        f"{name}.lora_B.weight": np.zeros((num_outputs, 8), np.float32),
    }
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a checkpoint of one matrix, from 64 inputs to 32 outputs."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    weights = {f"{LAYER}.weight": np.zeros((32, 64), np.float32)}
    save_file(weights, folder / "model.safetensors")
    return folder


def problem(model: Path, adapter: Path | str, *edits: tuple[str, object]) -> str:
    adapters = ("spec.model.adapters", [{"name": "sql", "source": str(adapter)}])
    manifest = parse(edited(("spec.model.source", str(model)), adapters, *edits))
    try:
        check_adapters(manifest, str(model))
    except ManifestError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, ""),
        ({"config": CONFIG | {"peft_type": "IA3"}}, "it is not a LoRA adapter: its peft_type"),
        ({"config": {"r": 8}}, "it is not a LoRA adapter: its peft_type is None"),
        ({"config": CONFIG | {"use_dora": True}}, "it has use_dora, which vLLM does not serve"),
        ({"config": CONFIG | {"lora_bias": True}}, "it has lora_bias, which"),
        ({"config": CONFIG | {"modules_to_save": ["lm_head"]}}, "it has modules_to_save, which"),
        ({"config": CONFIG | {"modules_to_save": 7}}, "it has modules_to_save, which"),
        (
            {"config": CONFIG | {"use_qalora": True, "init_lora_weights": "pissa"}},
            "it has use_qalora and init_lora_weights=pissa, which vLLM does not serve",
        ),
        ({"config": CONFIG | {"r": 1024}}, "its rank is not from 1 to 512"),
        ({"config": CONFIG | {"rank_pattern": {"q_proj": 0}}}, "its rank is not from 1 to 512"),
        ({"config": CONFIG | {"r": "8"}}, "its rank is not from 1 to 512"),
        ({"config": "{"}, "adapter_config.json cannot be read as JSON"),
        ({"config": "[]"}, "adapter_config.json is not a JSON object"),
        ({"sizes": (32, 32)}, f"its {LAYER} has 32 inputs, the model's 64: it was made for anoth"),
        ({"sizes": (64, 64)}, f"its {LAYER} has 64 outputs, the model's 32: it was made for ano"),
        ({"module": "model.layers.0.mlp.fc1"}, "which the model does not have"),
        # Of a matrix that the model may tie to another, and of one with another name, vLLM tells.
        ({"module": "lm_head"}, ""),
        ({"module": "transformer.layers.0.q_proj", "sizes": (1, 1)}, ""),
        ({"sizes": (32, 64), "config": CONFIG | {"fan_in_fan_out": True}}, ""),
    ],
)
def test_adapter_that_does_not_fit_gets_one_sentence(
    tmp_path: Path, model: Path, fields: dict[str, Any], told: str
) -> None:
    folder = write(tmp_path / "sql", **fields)
    found = problem(model, folder)
    if not told:
        assert found == ""
    else:
        assert found.startswith(f"spec.model.adapters: sql is {folder}, but ")
        assert told in found and found.count("\n") == 0 and found.endswith(".")


def test_folder_without_an_adapter_gets_one_sentence(tmp_path: Path, model: Path) -> None:
    assert "but it contains no adapter (adapter_config.json)." in problem(model, tmp_path)


def test_file_that_is_no_safetensors_gets_one_sentence(tmp_path: Path, model: Path) -> None:
    folder = write(tmp_path / "sql")
    (folder / "adapter_model.safetensors").write_text("not weights")
    assert "but adapter_model.safetensors is not a safetensors file." in problem(model, folder)


def test_rank_above_the_engine_argument_gets_one_sentence(tmp_path: Path, model: Path) -> None:
    folder = write(tmp_path / "sql", config=CONFIG | {"r": 16})
    limit = ("spec.engine.args", {"maxLoraRank": 8})
    assert "its rank is 16, and spec.engine.args sets max_lora_rank to 8" in problem(
        model, folder, limit
    )


def test_adapters_on_the_hub_or_of_an_emulated_engine_are_not_read(model: Path) -> None:
    assert problem(model, "org/adapter") == ""
    assert problem(model, "/nowhere", ("spec.engine.type", "Emulated")) == ""


def test_adapter_of_a_model_on_the_hub_is_checked_by_its_configuration_alone(
    tmp_path: Path,
) -> None:
    assert problem(Path("org/model"), write(tmp_path / "sql")) == ""


def test_rank_is_the_largest_of_all_modules(tmp_path: Path) -> None:
    folder = write(tmp_path / "sql", config=CONFIG | {"rank_pattern": {"q_proj": 32, "v_proj": 4}})
    assert rank_of(folder) == 32


def test_settings_have_each_adapter_by_its_name() -> None:
    adapters = [{"name": "sql", "source": "org/a"}, {"name": "chat", "source": "~/b"}]
    settings = engine_settings(parse(edited(("spec.model.adapters", adapters))), "tiny")
    assert settings.adapters == {"sql": "org/a", "chat": str(Path("~/b").expanduser())}
