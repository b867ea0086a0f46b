"""Clients may set some variables in a chat template."""

import inspect
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase
from vllm.config import ModelConfig
from vllm.tokenizers import cached_tokenizer_from_config

from macroserve.engine.vllm.chat_template import REASONING_VARIABLES, template_variables

TEMPLATE = """
{% if tokenize or padding or max_length or my_flag %}{% endif %}
{% set own = 1 %}{{ own }}{{ bos_token }}{{ messages }}{{ documents }}{{ tools }}
"""


@pytest.fixture(scope="module")
def config(tiny_model: Path) -> ModelConfig:
    return ModelConfig(str(tiny_model))


def test_template_variables_are_read_by_the_template_alone(
    config: ModelConfig,
) -> None:
    tokenizer = cached_tokenizer_from_config(config)
    assert template_variables(tokenizer, config, TEMPLATE) == REASONING_VARIABLES | {"my_flag"}


def test_template_variables_never_include_tokenizer_arguments(config: ModelConfig) -> None:
    own = set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)
    assert {"tokenize", "padding", "max_length", "tokenizer_kwargs", "return_tensors"} <= own
    template = "".join(f"{{{{ {name} }}}}" for name in own)
    tokenizer = cached_tokenizer_from_config(config)
    assert template_variables(tokenizer, config, template) == REASONING_VARIABLES


def test_template_variables_without_a_server_template_are_the_models(config: ModelConfig) -> None:
    tokenizer = cached_tokenizer_from_config(config)
    assert template_variables(tokenizer, config, None) == REASONING_VARIABLES


def test_template_variables_of_a_model_with_two_templates_are_those_of_both(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = cached_tokenizer_from_config(config)
    templates = {"default": "{{ one }}", "tool_use": "{{ another }}"}
    monkeypatch.setattr(tokenizer, "chat_template", templates)
    found = template_variables(tokenizer, config, None)
    assert found == REASONING_VARIABLES | {"one", "another"}


def test_template_variables_without_a_template_are_for_reasoning(config: ModelConfig) -> None:
    assert template_variables(None, config, None) == REASONING_VARIABLES
