"""Translation of the option names in vLLM's messages to names in a manifest.

vLLM's errors mention flags of ``vllm serve``, which users do not run here. A test checks that every
flag in the installed vLLM's error texts has a translation.
"""

import re

from pydantic.alias_generators import to_camel

from macroserve.api import api_options, engine_args
from macroserve.api.vllm_names import ENGINE_ARGS

SENTENCES = {
    "As of transformers v4.44, default chat template is no longer allowed": (
        "the model has no chat template, so that it takes no messages: give it one in "
        "spec.api.chatTemplate, or send a prompt to /v1/completions"
    ),
    "This vLLM engine does not support `store=True`": (
        "background responses are not served, because responses are not stored: omit background"
    ),
    "Start the server with --trust-request-mm-kwargs": (
        "mm_processor_kwargs and media_io_kwargs are set in spec.engine.args, not by a request"
    ),
    "--trust-request-chat-template is not set": (
        "a request cannot bring a chat template, because a client must not choose the program that "
        "renders prompts: the template is in spec.api.chatTemplate"
    ),
}
"""Replacements of vLLM's texts, by a part of each, that need more than another option name."""

_FLAG = re.compile(r"`?(?<![\w-])(--[a-z][a-z0-9]*(?:-[a-z0-9]+)*)`?")
_TWICE = re.compile(r"(spec\.[\w.]+) and(?:/or)? \1(?![\w.])")


def in_manifest_words(text: str) -> str:
    """Return the text with manifest fields in place of known vLLM flags."""
    for part, instead in SENTENCES.items():
        if part in text:
            return instead
    if "--" not in text:
        return text
    named = _FLAG.sub(lambda match: place_of(match[1]) or match[0], text)
    return _TWICE.sub(r"\1", named)


def place_of(flag: str) -> str | None:
    """Return the field that sets a vLLM flag, or why it cannot be set; None for unknown flags."""
    name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
    if name in api_options.ApiOptions.model_fields:
        return f"spec.api.{to_camel(name)}"
    if field := api_options.DECIDED.get(name) or engine_args.DECIDED_BY.get(name):
        return field
    if why := api_options.FIXED.get(name) or engine_args.UNSERVED.get(name):
        return f"{flag} (which cannot be set here: {why})"
    return f"spec.engine.args.{to_camel(name)}" if name in ENGINE_ARGS else None
