"""The folders of weights and compiled code are the libraries' ones."""

from pathlib import Path

import pytest
from huggingface_hub import constants
from support.manifests import edited, emulated

from macroserve.api.manifest import parse
from macroserve.local.model_cache import cache_folders, hub_names

ADAPTERS = [{"name": "a", "source": "team/adapter"}, {"name": "b", "source": "/models/b"}]
TABLE: dict[str, tuple[object, tuple[str, ...]]] = {
    "built-in": (edited(("spec.model.adapters", [])), ()),
    "hub": (edited(("spec.model.source", "meta/Llama")), ("meta/Llama",)),
    "hub and adapters": (
        edited(("spec.model.source", "meta/Llama"), ("spec.model.adapters", ADAPTERS)),
        ("meta/Llama", "team/adapter"),
    ),
    "folder": (edited(("spec.model.source", "/models/llama")), ()),
    "built-in and adapters": (edited(("spec.model.adapters", ADAPTERS)), ("team/adapter",)),
    "emulated": (emulated(model={"source": "meta/Llama", "maxModelLen": 64}), ()),
}


@pytest.mark.parametrize("case", TABLE)
def test_hub_names_of_a_manifest_are_what_an_instance_loads(case: str) -> None:
    document, expected = TABLE[case]
    assert hub_names(parse(document)) == expected


def test_cache_folders_are_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "/m/hub")
    monkeypatch.setenv("XDG_CACHE_HOME", "/m/cache")
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/m/vllm")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/m/triton")
    found = cache_folders(parse(edited(("spec.model.source", "meta/Llama"))))
    assert found == (
        Path("/m/hub/models--meta--Llama/blobs"),
        Path("/m/cache/macroserve/models"),
        Path("/m/vllm/torch_compile_cache"),
        Path("/m/vllm/torch_compile_cache/torch_aot_compile"),
        Path("/m/triton"),
    )


def test_cache_folders_without_variables_are_the_libraries_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    found = cache_folders(parse(edited()))
    assert tmp_path / ".cache" / "vllm" / "torch_compile_cache" in found
    assert tmp_path / ".triton" / "cache" in found
