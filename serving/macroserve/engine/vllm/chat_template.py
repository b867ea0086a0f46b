"""Variables that clients may set in the chat template of a served model."""

import inspect

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from vllm.config import ModelConfig
from vllm.renderers.hf import _resolve_chat_template_kwargs, resolve_chat_template
from vllm.tokenizers import TokenizerLike
from vllm.tokenizers.hf import HfTokenizer

# Read by vLLM's reasoning parsers and by renderers without a template; others ignore them.
REASONING_VARIABLES = frozenset(
    {"enable_thinking", "thinking", "thinking_mode", "reasoning_effort"}
)


def template_variables(
    tokenizer: TokenizerLike | None, model_config: ModelConfig, chat_template: str | None
) -> frozenset[str]:
    """Return the names that ``chat_template_kwargs`` may set: the template's variables, except
    parameters of the tokenizer (``tokenize``, ``padding``, ``max_length``, ...).

    chat_template: text of the server's template; None for the model's.
    """
    if not isinstance(tokenizer, HfTokenizer):
        return REASONING_VARIABLES
    read: set[str] = set()
    for tools in (None, [{}]):
        # A model may have another template for chats with tools.
        template = resolve_chat_template(tokenizer, chat_template, tools, model_config=model_config)
        if isinstance(template, str):
            read |= _variables(template)
    return (REASONING_VARIABLES | read) - _taken_by(tokenizer)


def _variables(template: str) -> set[str]:
    try:
        return set(_resolve_chat_template_kwargs(template))
    except TemplateError:
        # The template's error is the answer to each chat.
        return set()


def _taken_by(tokenizer: HfTokenizer) -> set[str]:
    methods = (
        PreTrainedTokenizerBase.apply_chat_template,
        PreTrainedTokenizerBase.__call__,
        tokenizer.apply_chat_template,
        tokenizer.__call__,
    )
    names = {name for method in methods for name in inspect.signature(method).parameters}
    # Renderers set these variables.
    return names | {"messages", "bos_token", "eos_token", "raise_exception", "strftime_now"}
