"""Manifest files of any content give a manifest or an error sentence."""

import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.manifests import edited

from macroserve.api.manifest import Manifest, ManifestError, changes, parse
from macroserve.core.request import Slo
from macroserve.core.tuning import Tuning
from macroserve.engine.settings import EngineSettings
from macroserve.local.manifest_file import (
    MAX_BYTES,
    chat_template,
    engine_settings,
    load,
    load_document,
    loads,
)

BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
MERGE_BOMB = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "x: 1\na: 2024-02-30",
            "m.yaml, line 2 is not YAML: '2024-02-30' is not a valid",
        ),
        ("a: 2024-01-01 25:00:00", "timestamp"),
        ("a: " + "9" * 5000, "is not a valid int"),
        ("a: 0b_", "is not a valid int"),
        ("a: !!bool maybe", "is not a valid bool"),
        ("a: !!timestamp soon", "is not a valid timestamp"),
        ("a: !!python/object:os.system x", "line 1 is not YAML: could not determine a constructor"),
        ("a: " + "[" * 3000, "nested too deeply"),
        ("a: " + "{b: " * 3000 + "1" + "}" * 3000, "nested too deeply"),
        ("a: &a [*a]", "an alias refers to its own parent"),
        ("a: &a {<<: *a}", "line 1 is not YAML"),
        (BOMB, "including aliases"),
        (MERGE_BOMB, "including aliases"),
        ("{a: 1", "line 1 is not YAML"),
        ("a: \x00", "is not YAML"),
        ("? [a, b]\n: c", "unhashable key"),
        ("", "manifest"),
        ("x" * (MAX_BYTES + 1), "more than 1048576 bytes"),
    ],
)
def test_text_that_is_no_manifest_gets_one_sentence(text: str, told: str) -> None:
    with pytest.raises(ManifestError) as refused:
        loads(text, "m.yaml")
    assert told in str(refused.value) and "\n" not in str(refused.value)


@given(st.text(max_size=60))
def test_any_text_is_a_manifest_or_a_manifest_error(text: str) -> None:
    with pytest.raises(ManifestError):
        loads(text, "m.yaml")


def _fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: None, "cannot be read: No such file"),
        (Path.mkdir, "cannot be read: Is a directory|is not a regular file"),
        (_fifo, "is not a regular file"),
        (lambda path: path.write_bytes(b"\xff\xfea: 1"), "is not a text file"),
        (lambda path: path.write_bytes(b"#" * (MAX_BYTES + 1)), "has more than"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels"),
    ],
)
def test_path_that_is_no_manifest_gets_one_sentence(tmp_path: Path, make, told: str) -> None:
    path = tmp_path / "m.yaml"
    make(path)
    for reader in (load, load_document):
        with pytest.raises(ManifestError, match=told):
            reader(path)


def test_changed_template_that_repeats_itself_is_compared_or_refused() -> None:
    document = yaml.safe_load(Path("manifests/quickstart.yaml").read_text())
    before = loads(yaml.safe_dump(document), "m.yaml")
    inner: dict = {"a": "x"}
    for _ in range(10):
        inner = {"a": inner, "b": inner}
    document["spec"]["template"] = inner
    after = loads(yaml.safe_dump(document), "m.yaml")
    assert changes(before, after)
    for _ in range(10):
        inner = {"a": inner, "b": inner}
    document["spec"]["template"] = inner
    with pytest.raises(ManifestError, match="including aliases"):
        loads(yaml.safe_dump(document), "m.yaml")


def with_api(**api: object) -> Manifest:
    document = yaml.safe_load(Path("manifests/quickstart.yaml").read_text())
    document["spec"]["api"] = api
    return loads(yaml.safe_dump(document), "m.yaml")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{% for m in messages %}\n{{ m.content \n", "line 2: unexpected end of template"),
        ("{% if a %}\n\n{{ b }}", "line 3: Unexpected end of template"),
        ("a\n{{ a|nofilter }}", "line 2: No filter named 'nofilter'"),
        ("{% endfor %}", "line 1: "),
        ("{{ " + "(" * 5000 + " }}", "nested too deeply"),
    ],
)
def test_template_that_cannot_be_compiled_is_refused_with_its_line(
    tmp_path: Path, template: str, told: str
) -> None:
    (tmp_path / "chat.jinja").write_text(template)
    given = {
        "spec.api.chatTemplate": (with_api(chatTemplate=template), None),
        "spec.api.chatTemplateFile": (with_api(chatTemplateFile="chat.jinja"), None),
        "spec.api.chatTemplateConfigMap": (
            with_api(chatTemplateConfigMap={"name": "t", "key": "chat.jinja"}),
            tmp_path,
        ),
    }
    for field, (manifest, config_map) in given.items():
        with pytest.raises(ManifestError) as refused:
            chat_template(manifest, tmp_path, config_map)
        [sentence] = refused.value.problems
        assert sentence.startswith(field) and told in sentence


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages }}",
        "{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}{% break %}"
        "{% endfor %}",
        "{{ raise_exception('no') }}{{ strftime_now('%Y') }}",
    ],
)
def test_template_with_any_feature_of_models_is_accepted(tmp_path: Path, template: str) -> None:
    assert chat_template(with_api(chatTemplate=template), tmp_path) == template


def test_template_file_is_looked_for_beside_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = with_api(chatTemplateFile="templates/chat.jinja")
    anywhere = with_api(chatTemplateFile=str(tmp_path / "templates" / "chat.jinja"))
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "chat.jinja").write_text("{{ a }}")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert chat_template(manifest, tmp_path) == "{{ a }}"
    with pytest.raises(ManifestError, match="cannot be read"):
        chat_template(manifest, elsewhere)
    assert chat_template(anywhere, elsewhere) == "{{ a }}"


@pytest.mark.parametrize("setting", ["Auto", "On", "Off"])
def test_engine_settings_have_the_manifests_prefix_caching(setting: str) -> None:
    manifest = parse(edited(("spec.engine.prefixCaching", setting)))
    settings = engine_settings(manifest, "tiny")
    assert (settings.prefix_caching, settings.hybrid_cache) == (setting, "Auto")


def test_engine_settings_have_the_manifests_classes_and_ordering_after_the_wire() -> None:
    slo_class = {"name": "chat", "ttft": "1s", "tpot": "50ms", "models": ["llama"]}
    manifest = parse(
        edited(
            ("spec.slo.classes", [slo_class]),
            ("spec.slo.allowRequestTargets", True),
            (
                "spec.scheduling",
                {"strategy": "ascendra", "ordering": "Slack", "tuning": {"lpBatchSize": 64}},
            ),
        )
    )
    settings = engine_settings(manifest, "tiny")
    (found,) = settings.slo_classes
    assert (found.name, found.slo, found.models) == ("chat", Slo(1.0, 0.05), ("llama",))
    assert settings.takes_request_targets
    assert settings.ordering == "Slack"
    assert settings.tuning == Tuning(lp_batch_size=64)
    wire = json.loads(json.dumps(settings.to_dict()))
    assert EngineSettings.from_dict(wire) == settings
    for name in ("slo_classes", "takes_request_targets", "ordering", "tuning"):
        del wire[name]  # from an earlier version
    assert EngineSettings.from_dict(wire).slo_classes == ()


def test_device_to_rehearse_replaces_that_of_the_manifest() -> None:
    text = json.dumps(edited(("spec.engine.type", "vLLM"), ("spec.engine.rehearse", "L20-48GB")))
    assert loads(text, "a").spec.engine.rehearse == "L20-48GB"
    assert loads(text, "a", "H200-141GB").spec.engine.rehearse == "H200-141GB"


@pytest.mark.parametrize("text", ["[]", "spec: 3", "spec: {engine: []}", "spec: {}"])
def test_device_to_rehearse_does_not_hide_what_is_wrong(text: str) -> None:
    with pytest.raises(ManifestError) as plain:
        loads(text, "a")
    with pytest.raises(ManifestError) as rehearsed:
        loads(text, "a", "L20-48GB")
    assert rehearsed.value.problems == plain.value.problems
