"""Clients may set some variables in the chat template of a served model."""

import inspect

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from vllm.config import ModelConfig
from vllm.renderers.hf import _resolve_chat_template_kwargs, resolve_chat_template
from vllm.tokenizers import TokenizerLike
from vllm.tokenizers.hf import HfTokenizer

# Read by vLLM's reasoning parsers and by renderers without a template; harmless to the others.
REASONING_VARIABLES = frozenset(
    {"enable_thinking", "thinking", "thinking_mode", "reasoning_effort"}
)


def template_variables(
    tokenizer: TokenizerLike | None, model_config: ModelConfig, chat_template: str | None
) -> frozenset[str]:
    """Return the names that ``chat_template_kwargs`` may set.

    They are the variables of the template, except those that the tokenizer takes itself
    (``tokenize``, ``padding``, ``max_length``, ...).

    chat_template: the server's own template, as text; None for the model's.
    """
    if not isinstance(tokenizer, HfTokenizer):
        return REASONING_VARIABLES
    read: set[str] = set()
    for tools in (None, [{}]):
        # A model may have one template for chats with tools and another for those without.
        template = resolve_chat_template(tokenizer, chat_template, tools, model_config=model_config)
        if isinstance(template, str):
            read |= _variables(template)
    return (REASONING_VARIABLES | read) - _taken_by(tokenizer)


def _variables(template: str) -> set[str]:
    try:
        return set(_resolve_chat_template_kwargs(template))
    except TemplateError:
        # Chats are refused with the template's own error.
        return set()


def _taken_by(tokenizer: HfTokenizer) -> set[str]:
    methods = (
        PreTrainedTokenizerBase.apply_chat_template,
        PreTrainedTokenizerBase.__call__,
        tokenizer.apply_chat_template,
        tokenizer.__call__,
    )
    names = {name for method in methods for name in inspect.signature(method).parameters}
    # A renderer sets these variables itself.
    return names | {"messages", "bos_token", "eos_token", "raise_exception", "strftime_now"}
