"""The names that Macroserve knows of vLLM are those of the installed vLLM."""

import pytest
from support import vllm_errors
from support import vllm_names as support

from macroserve.api import api_options, vllm_names
from macroserve.api.option_names import SENTENCES, place_of
from macroserve.engine.vllm.version import installed_version, release_of

pytestmark = pytest.mark.integration


def test_vllm_names_as_generated_are_those_of_the_installed_vllm() -> None:
    release = release_of(installed_version())
    installed = support.installed()
    for kind, names in installed.items():
        only_in = vllm_names.ONLY_IN[kind]
        written = getattr(vllm_names, kind)
        assert {n for n in written if release in only_in.get(n, (release,))} == set(names)
    for name, kinds in installed["ENGINE_ARGS"].items():
        assert set(kinds.split(" or ")) <= set(vllm_names.ENGINE_ARGS[name].split(" or "))


def test_vllm_serve_options_are_each_decided_once() -> None:
    """A new option in a new vLLM becomes a field of spec.api, or has a reason not to be one."""
    offered = set(api_options.ApiOptions.model_fields) - {
        "served_names",
        "reasoning_parser",
        "chat_template_file",
        "chat_template_config_map",
    }
    parts = [offered, set(api_options.DECIDED), set(api_options.FIXED)]
    assert set.union(*parts) == set(vllm_names.SERVER_OPTIONS)
    assert sum(map(len, parts)) == len(vllm_names.SERVER_OPTIONS), "one is decided twice"


def test_vllm_error_flags_each_have_a_place_in_the_manifest() -> None:
    named = vllm_errors.flags()
    assert {"--tool-call-parser", "--trust-request-chat-template"} <= named
    assert {flag for flag in named if place_of(flag) is None} == set()


@pytest.mark.parametrize("part", SENTENCES)
def test_replaced_sentences_occur_in_the_installed_vllm(part: str) -> None:
    assert any(part in text for text in vllm_errors.texts())
