"""An installed vLLM that cannot serve a manifest is told in a sentence before anything starts."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from pydantic.alias_generators import to_camel
from support.manifests import edited
from support.vllm_names import merged
from support.vllm_sources import RELEASES

from macroserve.api.manifest import ManifestError, parse
from macroserve.api.vllm_names import ONLY_IN, VERSIONS
from macroserve.core.request import Slo
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.version import problems, release_of
from macroserve.local import manifest_file

ROOT = Path(__file__).parents[2]
SETTINGS = EngineSettings(
    model="m", served_name="m", max_model_len=1024, strategy="unified", slo=Slo(1.0, 0.1)
)
NEW = replace(
    SETTINGS,
    args={"watchdog_config": {}, "max_logprobs": 5, "enable_hc_sp": True},
    api={"tool_call_parser": "beam", "reasoning_parser": "hf"},
)


@pytest.mark.parametrize("installed", ["0.31.0", "0.32.0", "0.32.1+cpu", "0.33.0"])
def test_supported_version_has_no_problems(installed: str) -> None:
    assert problems(SETTINGS, installed) == ()


@pytest.mark.parametrize("installed", ["0.30.2", "0.34.0", "1.0", "0.3.3"])
def test_wrong_version_says_which_are_right(installed: str) -> None:
    assert problems(NEW, installed) == (
        f"vLLM {installed} is installed, but this version of macroserve works with 0.31, 0.32 and "
        "0.33.",
    )


def test_settings_that_a_version_lacks_say_which_versions_have_them() -> None:
    assert problems(NEW, "0.31.0") == (
        "spec.engine.args.watchdogConfig needs vLLM 0.33, but 0.31.0 is installed.",
        "spec.engine.args.enableHcSp needs vLLM 0.32 or 0.33, but 0.31.0 is installed.",
        "spec.api.toolCallParser: beam needs vLLM 0.33, but 0.31.0 is installed.",
        "spec.api.reasoningParser: hf needs vLLM 0.32 or 0.33, but 0.31.0 is installed.",
    )
    assert len(problems(NEW, "0.32.0")) == 2
    assert problems(NEW, "0.33.0") == ()


def test_manifest_that_the_installed_vllm_cannot_serve_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manifest = parse(edited(("spec.engine.args", {"watchdogConfig": {}})))
    monkeypatch.setattr(manifest_file, "installed_version", lambda: "0.32.0")
    with pytest.raises(ManifestError, match="watchdogConfig needs vLLM"):
        manifest_file.engine_settings(manifest, "tiny")
    monkeypatch.setattr(manifest_file, "installed_version", lambda: "0.33.0")
    assert manifest_file.engine_settings(manifest, "tiny").args == {"watchdog_config": {}}


def test_names_of_several_versions_are_merged_with_who_has_them() -> None:
    old = {"ENGINE_ARGS": {"a": "scalar", "b": "list"}, "PARSERS": ("p", "q")}
    new = {"ENGINE_ARGS": {"a": "mapping", "c": "list"}, "PARSERS": ("p",)}
    assert merged({"1": old, "2": new}) == {
        "VERSIONS": ("1", "2"),
        "ENGINE_ARGS": {"a": "mapping or scalar", "b": "list", "c": "list"},
        "PARSERS": ("p", "q"),
        "ONLY_IN": {"ENGINE_ARGS": {"b": ("1",), "c": ("2",)}, "PARSERS": {"q": ("1",)}},
    }


def test_page_of_versions_names_all_that_some_lack() -> None:
    text = (ROOT / "docs" / "vllm-versions.md").read_text()
    names = [to_camel(name) for name in ONLY_IN["ENGINE_ARGS"]]
    names += [*ONLY_IN["TOOL_CALL_PARSERS"], *ONLY_IN["REASONING_PARSERS"]]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_supported_versions_are_those_of_the_packages_requirements() -> None:
    assert tuple(map(release_of, RELEASES)) == VERSIONS
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = document["project"]["optional-dependencies"]
    wanted = [Requirement(line) for line in (*extras["serve"], *extras["serve-cpu"])]
    ranges = [w.specifier for w in wanted if w.name.startswith("vllm")]
    assert len(ranges) == 2
    for specifier in ranges:
        assert all(specifier.contains(f"{version}.9") for version in VERSIONS)
        assert not any(specifier.contains(version) for version in ("0.30.9", "0.34.0"))
