"""The names that Macroserve knows of vLLM are those of the installed vLLM."""

import dataclasses

import pytest
from support import vllm_errors
from support import vllm_names as support

from macroserve.api import api_options, vllm_names
from macroserve.api.option_names import SENTENCES, place_of

pytestmark = pytest.mark.integration


def test_vllm_names_as_generated_equal_the_installed_vllm() -> None:
    written = {name: getattr(vllm_names, name) for name in support.installed()}
    assert written == support.installed()


def test_vllm_serve_options_are_each_decided_once() -> None:
    """A new option in a new vLLM becomes a field of spec.api, or has a reason not to be one."""
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    offered = set(api_options.Api.model_fields) - {
        "served_names",
        "reasoning_parser",
        "chat_template_file",
        "chat_template_config_map",
    }
    parts = [offered, set(api_options.DECIDED), set(api_options.FIXED)]
    options = {field.name for field in dataclasses.fields(FrontendArgs)}
    assert set.union(*parts) == options
    assert sum(map(len, parts)) == len(options), "one is decided twice"


def test_vllm_error_flags_each_have_a_place_in_the_manifest() -> None:
    named = vllm_errors.flags()
    assert {"--tool-call-parser", "--trust-request-chat-template"} <= named
    assert {flag for flag in named if place_of(flag) is None} == set()


@pytest.mark.parametrize("part", SENTENCES)
def test_replaced_sentences_occur_in_the_installed_vllm(part: str) -> None:
    assert any(part in text for text in vllm_errors.texts())
