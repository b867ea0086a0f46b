"""Request bodies have limits."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.api.limit_check import excess, excess_of_bytes
from macroserve.api.limits import RequestLimits, limits_for

LIMITS = RequestLimits(template_variables=frozenset({"enable_thinking"}))


def message(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image(num_chars: int = 100) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * num_chars}}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def constrained(value: Any) -> dict[str, Any]:
    return {"structured_outputs": {"json": value}}


def patterns(count: int) -> dict[str, Any]:
    return schema(**{f"p{i}": {"type": "string", "pattern": "a{1,9}"} for i in range(count)})


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"prompt": nested(65)}, "prompt is nested 65 levels deep"),
        ({"seed": 2**63}, "seed has an integer that does not fit in 64 bits"),
        ({"metadata": {"a": [-(2**70)]}}, "metadata has an integer"),
        ({"n": 129}, "n is 129"),
        ({"n": 1e9}, "n is 1000000000.0"),
        ({"n": "5000"}, "n is 5000"),
        ({"best_of": 200}, "best_of is 200"),
        ({"prompt": ["a"] * 1025}, "prompt has 1025 entries"),
        ({"prompt": [[1]] * 100, "n": 11}, "prompt has 100 entries, with 11 choices each"),
        ({"messages": [[message()]] * 1025}, "messages has 1025 entries"),
        ({"messages": [message()] * 4097}, "messages has 4097 messages"),
        ({"messages": [message(content=[{}] * 5000)]}, "messages has 5001 messages"),
        ({"messages": [message(tool_calls=[{}] * 5000)]}, "messages has 5001 messages"),
        ({"input": [{}] * 4097}, "input has 4097 messages"),
        ({"items": ["a"] * 1025}, "items has 1025 entries"),
        ({"items": ["a"] * 1000, "query": "q" * 1100}, "items times the length of query"),
        ({"prompt": "a" * (LIMITS.text_chars + 1)}, "prompt has 262145 characters"),
        ({"messages": [message("a" * 600_000)] * 2}, "messages has 1200"),
        ({"system": ["a" * 600_000] * 2}, "system has 1200"),
        ({"tokens": [1] * (LIMITS.prompt_tokens + 1)}, "tokens has 131073 entries"),
        ({"stop": ["a"] * 65}, "stop has 65 entries"),
        ({"stop": "a" * 1025}, "stop has a text of 1025 characters"),
        ({"stop_sequences": ["a" * 1025]}, "stop_sequences has a text"),
        ({"bad_words": ["a"] * 129}, "bad_words has 129 entries"),
        ({"bad_words": ["a" * 257]}, "bad_words has a text of 257"),
        ({"stop_token_ids": [1] * 16_385}, "stop_token_ids has 16385"),
        ({"allowed_token_ids": [1] * 16_385}, "allowed_token_ids has 16385"),
        ({"logprob_token_ids": [1] * 129}, "logprob_token_ids has 129"),
        ({"label_token_ids": [1] * 129}, "label_token_ids has 129"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias has 1025"),
        ({"vllm_xargs": {str(i): 1 for i in range(33)}}, "vllm_xargs has 33"),
        ({"repetition_detection": {"max_pattern_size": 10**6}}, "max_pattern_size is 1000000"),
        ({"vllm_xargs": {"kv_transfer_params": "x"}}, "vllm_xargs.kv_transfer_params"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params is not available"),
        ({"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs is not available"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds is not available"),
        ({"messages": [message(content=[image()] * 65)]}, "messages: images has 65 entries"),
        ({"input": [message(content=[{"type": "input_image"}] * 65)]}, "input: images has 65"),
        ({"messages": [[message(content=[{**image(), "uuid": "a"}])]]}, "an image with a uuid"),
        ({"messages": [message(content=[image(), part("a" * 300_000)])]}, "messages has 3000"),
        ({"structured_outputs": 0.5}, "structured_outputs is not an object"),
        ({"response_format": "json"}, "response_format is not an object"),
        ({"stream_options": [1]}, "stream_options is not an object"),
        ({"chat_template_kwargs": "tokenize"}, "chat_template_kwargs is not an object"),
        ({"tools": {"type": "function"}}, "tools is not a list of objects"),
        ({"tools": [None]}, "tools is not a list of objects"),
        ({**constrained({"type": "object"}), "allowed_token_ids": [5]}, "allowed_token_ids cannot"),
        ({"response_format": {"type": "json_object"}, "bad_words": ["{"]}, "bad_words cannot"),
        ({"request_id": "a\nb"}, "request_id has control characters"),
        ({"user": "a" * 1025}, "user has a text of 1025"),
        ({"chat_template_kwargs": {"tokenize": True}}, "tokenize, which this model's chat"),
        ({"chat_template_kwargs": {"max_length": 2**31}}, "it reads: enable_thinking"),
        ({"tools": [{}] * 257}, "tools has 257"),
        ({"tools": [{"description": "a" * 600_000}]}, "tools has 6000"),
        ({"tools": [{"function": {"parameters": patterns(257)}}]}, "tools has 257 patterns"),
        (constrained(patterns(300)), "structured_outputs.json has 300 patterns"),
        (constrained(json.dumps(patterns(300))), "structured_outputs.json has 300 patterns"),
        (constrained(nested(33)), "structured_outputs.json is nested 33 levels"),
        (constrained({"patternProperties": {str(i): {} for i in range(300)}}), "300 patterns"),
        (constrained({"enum": list(range(5001))}), "5001 enum values"),
        (constrained(schema(**{f"p{i}": {} for i in range(5001)})), "5001 properties"),
        (constrained("x" * 200_000), "structured_outputs.json has 200000 characters"),
        ({"response_format": {"a": "x" * 200_000}}, "response_format has 2000"),
        ({"text": {"format": {"schema": patterns(300)}}}, "text has 300 patterns"),
        ({"output_config": {"schema": patterns(300)}}, "output_config has 300 patterns"),
        ({"structured_outputs": {"regex": "a" * 9000}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "a" * 70_000}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": ["a"] * 5000}}, "structured_outputs.choice has 5000"),
        ({"structured_outputs": {"choice": ["a" * 70_000]}}, "choice has 70000 characters"),
        ({"structured_outputs": {"structural_tag": "x" * 200_000}}, "structural_tag has 200000"),
    ],
)
def test_body_beyond_a_limit_gives_a_sentence_that_names_it(
    body: dict[str, Any], says: str
) -> None:
    assert says in (excess(body, LIMITS) or "")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": "Hello", "n": 4, "stop": ["\n"], "logit_bias": {"5": -100}},
        {"prompt": [1] * 100_000},
        {"prompt": [[1] * 500] * 500},
        {"messages": [message("a" * 200)] * 1000, "n": 128},
        {"messages": [message(content=[{"type": "text", "text": "hi"}])]},
        {"messages": [message(content=[part("hi"), image(1 << 20)])]},
        {"messages": [message(content=[{"type": "tool_result", "content": [image(1 << 20)]}])]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": None, "kv_transfer_params": None, "tools": []},
        {"tools": [{"function": {"name": "f", "parameters": schema(a={"type": "string"})}}] * 100},
        constrained(patterns(20)),
        {"n": None, "stop": None, "logit_bias": None, "structured_outputs": None},
        {"n": "many", "messages": "hi", "tools": None},
        {"response_format": {"type": "text"}, "bad_words": ["a"], "allowed_token_ids": [5]},
        {"seed": 2**63 - 1, "temperature": 1e308},
    ],
)
def test_body_within_all_limits_passes(body: dict[str, Any]) -> None:
    assert excess(body, LIMITS) is None
    assert excess_of_bytes(json.dumps(body).encode(), LIMITS) is None


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"[" * 20_000, "20000 objects and arrays"),
        (b'{"a":[' + b"{}," * 20_000 + b"1]}", "20002 objects and arrays"),
        (b'{"prompt":[' + b"1," * 600_000 + b"1]}", "values"),
        (b'{"x":"' + b'",{"' * 20_000 + b'"}', "objects and arrays"),
    ],
)
def test_body_bytes_too_large_to_decode_give_a_sentence(body: bytes, says: str) -> None:
    assert says in (excess_of_bytes(body, LIMITS) or "")


@pytest.mark.parametrize("text", ["[{,", '",{[', "\\", "\\\\"])
def test_body_bytes_inside_strings_do_not_count_as_structure(text: str) -> None:
    body = json.dumps({"prompt": text * 60_000}).encode()
    assert excess_of_bytes(body, LIMITS) is None


def test_limits_for_a_longer_context_allow_longer_prompts() -> None:
    limits = limits_for(1_000_000, frozenset())
    assert excess({"prompt": "a" * 8_000_000}, limits) is None
    assert excess_of_bytes(b'{"prompt":[' + b"1," * 1_000_000 + b"1]}", limits) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=15,
)
NAMES = st.sampled_from(
    [
        "n",
        "best_of",
        "prompt",
        "messages",
        "items",
        "query",
        "tokens",
        "stop",
        "bad_words",
        "logit_bias",
        "vllm_xargs",
        "tools",
        "repetition_detection",
        "chat_template_kwargs",
        "structured_outputs",
        "response_format",
        "input",
    ]
)


@given(st.dictionaries(NAMES, JSON))
def test_excess_of_any_json_gives_a_sentence_or_none(body: dict[str, Any]) -> None:
    found = excess(body, LIMITS)
    assert found is None or (found and len(found) < 2000)


@given(JSON)
def test_container_count_over_bytes_is_at_least_the_true_number(value: Any) -> None:
    def containers(value: Any) -> int:
        if isinstance(value, dict):
            return 1 + sum(map(containers, value.values()))
        return 1 + sum(map(containers, value)) if isinstance(value, list) else 0

    count = containers(value)
    limits = RequestLimits(containers=count)
    assert excess_of_bytes(json.dumps(value).encode(), limits) is None
    if count:
        limits = RequestLimits(containers=count - 1)
        assert excess_of_bytes(json.dumps(value).encode(), limits)
