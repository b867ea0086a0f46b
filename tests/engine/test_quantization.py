"""A failure with quantized weights names the field that asks for them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from macroserve.engine.vllm.engine import VllmEngine  # noqa: E402
from macroserve.engine.vllm.options import frontend_config  # noqa: E402
from macroserve.engine.vllm.quantization import naming_quantization  # noqa: E402

IN_CONFIG = {"quantization_config": {"quant_method": "awq"}}
ARGUMENT = "spec.engine.args.quantization is fp8, and vLLM does not start with it: "
WEIGHTS = (
    "spec.model.source has weights that are quantized by awq, and vLLM does not start with it: "
)


@pytest.mark.parametrize(
    ("config", "args", "says"),
    [
        ({}, {"quantization": "fp8"}, ARGUMENT),
        (IN_CONFIG, {}, WEIGHTS),
        (IN_CONFIG, {"quantization": "fp8"}, ARGUMENT),
        ({}, {}, ""),
        ({"quantization_config": None}, {}, ""),
        ([], {}, ""),
        (None, {}, ""),
    ],
)
def test_failure_with_quantized_weights_names_the_field(
    settings: EngineSettings, tmp_path: Path, config: Any, args: dict[str, Any], says: str
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    asked = replace(settings, model=str(tmp_path), args=args)
    with pytest.raises(RuntimeError) as failed, naming_quantization(asked):
        raise RuntimeError("there is no kernel")
    assert str(failed.value).startswith(says) and str(failed.value).endswith("there is no kernel")
    assert bool(says) == (str(failed.value) != "there is no kernel")


def test_configuration_that_vllm_refuses_is_told_in_its_first_words(
    settings: EngineSettings,
) -> None:
    asked = replace(settings, args={"quantization": "fp8"})
    with pytest.raises(RuntimeError, match="valid integer") as failed, naming_quantization(asked):
        TypeAdapter(int).validate_python("x")
    assert str(failed.value).startswith(ARGUMENT) and "\n" not in str(failed.value)


def test_ingress_whose_platform_lacks_the_quantization_names_the_field(
    settings: EngineSettings,
) -> None:
    """FP8 excludes float32."""
    asked = replace(settings, args={"quantization": "fp8"})
    with pytest.raises(RuntimeError) as failed:
        frontend_config(asked)
    assert str(failed.value).startswith(f"{ARGUMENT}torch.float32 is not supported")


def test_method_without_its_configuration_names_the_field(settings: EngineSettings) -> None:
    asked = replace(settings, args={"quantization": "fp8"})
    with pytest.raises(RuntimeError, match="missing 3 required"), naming_quantization(asked):
        raise TypeError("missing 3 required positional arguments")


def test_other_mistakes_keep_their_own_words(settings: EngineSettings) -> None:
    asked = replace(settings, args={"quantization": "fp8"})
    with pytest.raises(ValueError, match=r"^a field is wrong$"), naming_quantization(asked):
        raise ValueError("a field is wrong")


@pytest.mark.integration
async def test_engine_whose_platform_lacks_the_quantization_names_the_field(
    settings: EngineSettings,
) -> None:
    """AWQ needs weights that the tiny model does not have."""
    engine = VllmEngine(replace(settings, args={"quantization": "awq"}), Pool.LP)
    with pytest.raises(RuntimeError, match=r"^spec\.engine\.args\.quantization is awq, and"):
        await engine.start()
    await engine.stop()
