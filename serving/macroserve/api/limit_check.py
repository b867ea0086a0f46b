"""Checks of a request's body against limits, before anything is computed from it.

No check recurses, so the time is a small multiple of the time of decoding.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from macroserve.api.json_size import (
    length,
    long_lists,
    long_strings,
    measured,
    number,
    objects,
    types_of,
)
from macroserve.api.limits import MAX_INTEGER, RequestLimits

_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def excess_of_bytes(body: bytes, limits: RequestLimits) -> str | None:
    """Return why a JSON document is too large to decode, or None."""

    def over(json: bytes) -> str | None:
        containers = json.count(b"{") + json.count(b"[")
        if containers > limits.containers:
            return _too_many("objects and arrays", containers, limits.containers)
        values = json.count(b",") + containers
        return _too_many("values", values, limits.values) if values > limits.values else None

    # Remove strings, which is slow, only if their characters could decide.
    return over(body) and over(_STRINGS.sub(b"", body))


def excess(body: Mapping[str, Any], limits: RequestLimits) -> str | None:
    """Return a sentence about the first limit that the body exceeds, or None."""
    return next(_excesses(body, limits), None)


def _excesses(body: Mapping[str, Any], limits: RequestLimits) -> Iterator[str]:
    yield from _json(body, limits)
    yield from _shape(body)
    yield from _unavailable(body)
    yield from _sequences(body, limits)
    yield from _prompt(body, limits)
    yield from _sampling(body, limits)
    yield from _names(body, limits)
    yield from _template_arguments(body, limits)
    yield from _constraints(body, limits)


def _json(body: Mapping[str, Any], limits: RequestLimits) -> Iterator[str]:
    for name, value in body.items():
        size = measured(value)
        if size.depth >= limits.depth:
            yield f"{name[:100]} is nested {size.depth} levels deep; at most {limits.depth - 1}"
        if size.largest_integer > MAX_INTEGER:
            yield f"{name[:100]} has an integer that does not fit in 64 bits"


# vLLM's models access these before they check their types.
_OBJECTS = frozenset(
    {
        "structured_outputs",
        "response_format",
        "stream_options",
        "chat_template_kwargs",
        "vllm_xargs",
        "repetition_detection",
        "logit_bias",
        "metadata",
        "text",
        "reasoning",
        "thinking",
        "output_config",
    }
)
_LISTS_OF_OBJECTS = frozenset({"tools", "documents"})


def _shape(body: Mapping[str, Any]) -> Iterator[str]:
    for name in _OBJECTS & body.keys():
        if not isinstance(body[name], dict | type(None)):
            yield f"{name} is not an object"
    for name in _LISTS_OF_OBJECTS & body.keys():
        value = body[name]
        if value is not None and not (
            isinstance(value, list) and all(isinstance(entry, dict) for entry in value)
        ):
            yield f"{name} is not a list of objects"
    constraint = body.get("structured_outputs")
    other = next((name for name in _AGAINST_CONSTRAINTS if body.get(name)), None)
    if other and (constraint or _constrains(body.get("response_format"))):
        yield f"{other} cannot be used with a schema or grammar: no token may meet both"


# These may forbid the only tokens that a grammar allows, which leaves the engine none.
_AGAINST_CONSTRAINTS = ("allowed_token_ids", "bad_words")


def _constrains(response_format: Any) -> bool:
    return isinstance(response_format, dict) and response_format.get("type") != "text"


# Only text and images are served, and clients may neither control transfers between caches nor
# change how images are processed.
_UNAVAILABLE = (
    "kv_transfer_params",
    "ec_transfer_params",
    "prompt_embeds",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "mm_payload",
    "return_mm_kwargs",
    "images",
    "audio",
    "videos",
)


_SERVED = "a request may contain text, and images in its messages"


def _unavailable(body: Mapping[str, Any]) -> Iterator[str]:
    arguments = body.get("vllm_xargs")
    for name in _UNAVAILABLE:
        if body.get(name):
            yield f"{name} is not available: {_SERVED}"
        if isinstance(arguments, dict) and name in arguments:
            yield f"vllm_xargs.{name} is not available: {_SERVED}"


def _sequences(body: Mapping[str, Any], limits: RequestLimits) -> Iterator[str]:
    n = 1.0
    for name in ("n", "best_of"):
        value = number(body.get(name))
        n = max(n, value)
        if value > limits.n:
            yield f"{name} is {body[name]}; at most {limits.n} choices are allowed"
    for name, prompts in _batches(body):
        if len(prompts) * n > limits.sequences:
            yield (
                f"{name} has {len(prompts)} entries, with {n:g} choices each; at most "
                f"{limits.sequences} sequences are allowed in one request"
            )


def _batches(body: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield lists in which each entry generates a response."""
    for name in ("prompt", "messages"):
        entries = body.get(name)
        if isinstance(entries, list) and types_of(entries) & {str, list}:
            yield name, entries
    for name in ("items", "questions"):
        if isinstance(entries := body.get(name), list | dict):
            yield name, list(entries)


def _prompt(body: Mapping[str, Any], limits: RequestLimits) -> Iterator[str]:
    batches = dict(_batches(body))
    for name in ("prompt", "messages", "items"):
        for value in batches.get(name, [body.get(name)]):
            yield from _text(name, value, limits)
    for name in ("suffix", "input", "instructions", "system", "documents", "query", "state"):
        yield from _text(name, body.get(name), limits)
    yield from long_lists("tokens", body.get("tokens"), limits.prompt_tokens)
    if items := batches.get("items"):
        # The query is repeated for each document.
        size = len(items) * length(body.get("query"))
        if size > 4 * limits.text_chars:
            yield (
                f"items times the length of query is {size}; at most {4 * limits.text_chars} "
                "characters or token IDs are allowed in one request"
            )
    for name in ("messages", "input"):
        if isinstance(messages := body.get(name), list):
            count = len(messages) + sum(map(_num_parts, messages))
            if count > limits.messages:
                yield (f"{name} has {count} messages and content parts; at most {limits.messages}")
            images = _images(messages)
            yield from long_lists(f"{name}: images", images, limits.images)
            if any(image.get("uuid") for image in images):
                yield f"{name} has an image with a uuid: images are identified by content only"
            if any("image_pil" in image or image.get("type") == "image_pil" for image in images):
                # vLLM passes it to the model's processor, which would open any file or URL.
                yield f"{name} has an image_pil, which is not available: send an image_url"


_IMAGE_TYPES = ("image_url", "input_image", "image", "image_pil")
_IMAGE_KEYS = frozenset({"image_url", "image_pil"})


def _images(messages: Any) -> list[dict[str, Any]]:
    """Return the content parts that are images."""
    found: list[dict[str, Any]] = []
    stack: list[Any] = [messages]
    while stack:
        entry = stack.pop()
        if isinstance(entry, list):
            if types_of(entry) & {list, dict}:
                stack.extend(entry)
        elif isinstance(entry, dict):
            if entry.get("type") in _IMAGE_TYPES or not _IMAGE_KEYS.isdisjoint(entry):
                found.append(entry)
            else:
                stack.append(entry.get("content"))
    return found


def _text(name: str, value: Any, limits: RequestLimits) -> Iterator[str]:
    # An image may be as long as the body.
    chars = measured(value).chars - sum(measured(image).chars for image in _images(value))
    if chars > limits.text_chars:
        yield f"{name} has {chars} characters; at most {limits.text_chars}"


def _num_parts(message: Any) -> int:
    if isinstance(message, list):
        return len(message) + sum(map(_num_parts, message))
    if not isinstance(message, dict):
        return 0
    lists = (message.get("content"), message.get("tool_calls"), message.get("tools"))
    return sum(len(parts) for parts in lists if isinstance(parts, list))


def _sampling(body: Mapping[str, Any], limits: RequestLimits) -> Iterator[str]:
    for name in ("stop", "stop_sequences"):
        yield from long_lists(name, body.get(name), limits.stop_strings)
        yield from long_strings(name, body.get(name), limits.stop_chars)
    yield from long_lists("bad_words", body.get("bad_words"), limits.bad_words)
    yield from long_strings("bad_words", body.get("bad_words"), limits.bad_word_chars)
    for name in ("stop_token_ids", "allowed_token_ids"):
        yield from long_lists(name, body.get(name), limits.token_ids)
    for name in ("logprob_token_ids", "label_token_ids"):
        yield from long_lists(name, body.get(name), limits.logprob_token_ids)
    yield from long_lists("logit_bias", body.get("logit_bias"), limits.logit_biases)
    yield from long_lists("vllm_xargs", body.get("vllm_xargs"), limits.extra_arguments)
    repetition = body.get("repetition_detection")
    if isinstance(repetition, dict):
        for name in ("max_pattern_size", "min_pattern_size", "min_count"):
            value = repetition.get(name)
            if isinstance(value, int) and value > limits.repeated_tokens:
                yield (f"repetition_detection.{name} is {value}; at most {limits.repeated_tokens}")


_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _names(body: Mapping[str, Any], limits: RequestLimits) -> Iterator[str]:
    for name in ("model", "request_id", "session_id", "user", "cache_salt", "prompt_cache_key"):
        value = body.get(name)
        if not isinstance(value, str):
            continue
        yield from long_strings(name, [value], limits.name_chars)
        if _CONTROL_CHARACTERS.search(value):
            yield f"{name} has control characters"


def _template_arguments(body: Mapping[str, Any], limits: RequestLimits) -> Iterator[str]:
    arguments = body.get("chat_template_kwargs")
    if not isinstance(arguments, dict):
        return
    if unknown := [str(name) for name in arguments if name not in limits.template_variables]:
        known = ", ".join(sorted(limits.template_variables)) or "none"
        yield (
            f"chat_template_kwargs has {_shown(unknown)}, which this model's chat template does "
            f"not read; it reads: {known}"
        )
    yield from _text("chat_template_kwargs", arguments, limits)


def _constraints(body: Mapping[str, Any], limits: RequestLimits) -> Iterator[str]:
    yield from long_lists("tools", body.get("tools"), limits.tools)
    yield from _schema("tools", body.get("tools"), limits.tools_bytes, limits)
    for name in ("response_format", "text", "output_config"):
        yield from _schema(name, body.get(name), limits.schema_bytes, limits)
    constraint = body.get("structured_outputs")
    if not isinstance(constraint, dict):
        return
    for name in ("json", "structural_tag"):
        value = constraint.get(name)
        yield from _schema(f"structured_outputs.{name}", value, limits.schema_bytes, limits)
    for name, most in (
        ("grammar", limits.grammar_bytes),
        ("regex", limits.regex_bytes),
        ("whitespace_pattern", limits.regex_bytes),
    ):
        yield from long_strings(f"structured_outputs.{name}", [constraint.get(name)], most)
    choices = constraint.get("choice")
    yield from long_lists("structured_outputs.choice", choices, limits.choices)
    if (chars := measured(choices).chars) > limits.grammar_bytes:
        yield f"structured_outputs.choice has {chars} characters; at most {limits.grammar_bytes}"


def _schema(name: str, value: Any, most_bytes: int, limits: RequestLimits) -> Iterator[str]:
    """Check JSON schemas anywhere in ``value``, which may be JSON in a string."""
    if isinstance(value, str):
        if len(value) > most_bytes:
            yield f"{name} has {len(value)} characters; at most {most_bytes}"
            return
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            # The grammar compiler reports the error.
            return
    if not isinstance(value, dict | list):
        return
    size = len(msgspec.json.encode(value))
    if size > most_bytes:
        yield f"{name} has {size} bytes; at most {most_bytes}"
        return
    depth = measured(value).depth
    if depth > limits.schema_depth:
        yield f"{name} is nested {depth} levels deep; at most {limits.schema_depth}"
    patterns = properties = enum_values = 0
    for part in objects(value):
        patterns += "pattern" in part
        patterns += length(part.get("patternProperties"))
        properties += length(part.get("properties"))
        enum_values += length(part.get("enum"))
    for what, count, most in (
        ("patterns", patterns, limits.schema_patterns),
        ("properties", properties, limits.schema_properties),
        ("enum values", enum_values, limits.schema_enum_values),
    ):
        if count > most:
            yield f"{name} has {count} {what}; at most {most}"


def _too_many(what: str, count: int, most: int) -> str:
    return f"the body has {count} {what}; at most {most}"


def _shown(names: Sequence[str]) -> str:
    return ", ".join(name[:50] for name in names[:5])
