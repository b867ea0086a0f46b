"""vLLM's messages name its options by flags, which are replaced by the names in a manifest.

vLLM's errors tell users to pass flags to ``vllm serve``, which they do not run here. A test takes
the flags from the error texts of the installed vLLM and checks that each of them has a place.
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
"""Texts of vLLM that other names do not make true, by a part of each, and their replacements."""

_FLAG = re.compile(r"`?(?<![\w-])(--[a-z][a-z0-9]*(?:-[a-z0-9]+)*)`?")
_TWICE = re.compile(r"(spec\.[\w.]+) and(?:/or)? \1(?![\w.])")


def in_manifest_words(text: str) -> str:
    """Return the text with fields of the manifest in place of vLLM's flags. Other flags stay."""
    for part, instead in SENTENCES.items():
        if part in text:
            return instead
    if "--" not in text:
        return text
    named = _FLAG.sub(lambda match: place_of(match[1]) or match[0], text)
    return _TWICE.sub(r"\1", named)


def place_of(flag: str) -> str | None:
    """Return the field that sets a flag of vLLM, or the flag and why it cannot be set; None for a
    flag that vLLM does not have."""
    name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
    if name in api_options.ApiOptions.model_fields:
        return f"spec.api.{to_camel(name)}"
    if field := api_options.DECIDED.get(name) or engine_args.DECIDED_BY.get(name):
        return field
    if why := api_options.FIXED.get(name) or engine_args.UNSERVED.get(name):
        return f"{flag} (which cannot be set here: {why})"
    return f"spec.engine.args.{to_camel(name)}" if name in ENGINE_ARGS else None
