"""Limits on the body of one request, each with its reason; docs/limits.md is the users' table."""

from dataclasses import dataclass

MAX_INTEGER = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Most that one request may ask for. Defaults suit models of up to 16 Ki tokens."""

    # JSON: a decoded object or array takes about 100 bytes, a number 40.
    containers: int = 16_384
    values: int = 524_288
    depth: int = 64

    # Generation: the ingress keeps the prompt of each sequence.
    sequences: int = 1024
    n: int = 128

    # Prompt: each message or part takes about 50 us to render; images may be fetched.
    text_chars: int = 1 << 18
    prompt_tokens: int = 1 << 17
    messages: int = 4096
    images: int = 64

    # Sampling: values are read or copied once per token or per sequence.
    stop_strings: int = 64
    stop_chars: int = 1024
    token_ids: int = 16_384
    logprob_token_ids: int = 128
    logit_biases: int = 1024
    bad_words: int = 128
    bad_word_chars: int = 256
    repeated_tokens: int = 256
    extra_arguments: int = 32

    # Tools and constraints: engine.forked limits the time and memory of compiling them.
    tools: int = 256
    tools_bytes: int = 512 << 10
    schema_bytes: int = 128 << 10
    schema_depth: int = 32
    schema_patterns: int = 256
    schema_properties: int = 5000
    schema_enum_values: int = 5000
    grammar_bytes: int = 64 << 10
    regex_bytes: int = 8 << 10
    choices: int = 4096

    # Names given by a client: kept for the request's life and echoed.
    name_chars: int = 1024

    template_variables: frozenset[str] = frozenset()
    """Names that ``chat_template_kwargs`` may set."""


def limits_for(max_model_len: int, template_variables: frozenset[str]) -> RequestLimits:
    """Return the limits for a model with a context of ``max_model_len`` tokens.

    16 characters per token is three times the ratio of English or code.
    """
    default = RequestLimits()
    return RequestLimits(
        values=max(default.values, 2 * max_model_len),
        text_chars=max(default.text_chars, 16 * max_model_len),
        prompt_tokens=max(default.prompt_tokens, 2 * max_model_len),
        template_variables=template_variables,
    )
