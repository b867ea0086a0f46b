"""Send slightly invalid bodies to every endpoint that generates tokens.

In a valid body, a few fields at any depth get values that clients send by mistake or on purpose.
The same seed gives the same bodies. The status must always be below 500, as for a client's fault.
"""

import asyncio
import copy
import json
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import aiohttp

TIMEOUT_S = 60.0
MAX_EXAMPLES = 20
MAX_TOKENS = 2

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
MESSAGE = {"role": "user", "content": "Hello"}

SAMPLING: dict[str, Any] = {
    "n": 1,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 3,
    "stop": ["x"],
    "stop_token_ids": [3],
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "length_penalty": 1.0,
    "logit_bias": {"5": 1},
    "allowed_token_ids": [5, 6, 7],
    "bad_words": ["the"],
    "min_tokens": 1,
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": True,
    "logprob_token_ids": [1, 2],
    "prompt_logprobs": 1,
    "truncate_prompt_tokens": 5,
    "truncation_side": "left",
    "use_beam_search": False,
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
    "structured_outputs": {"json": SCHEMA},
    "stream": False,
    "stream_options": {"include_usage": True},
    "stream_interval": 2,
    "user": "someone",
    "request_id": "mine",
    "session_id": "session",
    "priority": 0,
    "cache_salt": "salt",
    "vllm_xargs": {"a": 1, "kv_transfer_params": "x"},
    "kv_transfer_params": {"a": 1},
    "ec_transfer_params": {"a": 1},
    "repetition_detection": {"max_pattern_size": 4, "min_count": 2},
    "thinking_token_budget": 5,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "return_token_offsets": True,
    "return_mm_kwargs": True,
    "mm_payload": "none",
    "routed_experts_prompt_start": 0,
    "watermarking": False,
    "add_special_tokens": True,
}
CHAT: dict[str, Any] = {
    "tools": [TOOL],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "logprobs": True,
    "top_logprobs": 2,
    "max_completion_tokens": 2,
    "reasoning_effort": "low",
    "include_reasoning": True,
    "echo": True,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "documents": [{"title": "t", "text": "x"}],
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"enable_thinking": True},
    "media_io_kwargs": {"image": {}},
    "mm_processor_kwargs": {"a": 1},
    "return_prompt_text": True,
    **SAMPLING,
}

BODIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "/v1/chat/completions": (
        {
            "messages": [{"role": "system", "content": "Be brief"}, MESSAGE],
            "max_tokens": MAX_TOKENS,
        },
        CHAT,
    ),
    "/v1/completions": (
        {"prompt": "Hello", "max_tokens": MAX_TOKENS},
        {
            "logprobs": 2,
            "echo": True,
            "suffix": "s",
            "best_of": 2,
            "prompt_embeds": "AA",
            **SAMPLING,
        },
    ),
    "/v1/responses": (
        {"input": "Hello", "max_output_tokens": MAX_TOKENS},
        {
            "instructions": "Be brief",
            "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
            "tool_choice": "auto",
            "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}},
            "reasoning": {"effort": "low"},
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
            "metadata": {"a": "b"},
            "background": True,
            "store": True,
            "previous_response_id": "resp_1",
            "prompt": {"id": "p"},
            "truncation": "auto",
            "service_tier": "auto",
            "max_tool_calls": 1,
            "prompt_cache_key": "k",
            **SAMPLING,
        },
    ),
    "/v1/messages": (
        {"messages": [MESSAGE], "max_tokens": MAX_TOKENS},
        {
            "system": [{"type": "text", "text": "Be brief"}],
            "stop_sequences": ["x"],
            "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
            "tool_choice": {"type": "auto"},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            "metadata": {"user_id": "u"},
            "temperature": 0.5,
            "top_k": 3,
            "top_p": 0.9,
            "chat_template_kwargs": {"enable_thinking": True},
            "vllm_xargs": {"a": 1},
            "cache_salt": "salt",
            "stream": False,
        },
    ),
    "/tokenize": (
        {"prompt": "Hello"},
        {"add_special_tokens": True, "return_token_strs": True, "messages": [MESSAGE], **CHAT},
    ),
    "/detokenize": ({"tokens": [1, 2, 3]}, {"prompt": "x"}),
}

WEIGHTS = (5, 4, 4, 4, 2, 1)
"""Weight of each path, in the order of ``BODIES``."""

PARTS: list[Any] = [
    {"type": "text", "text": "hi"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
    {"type": "tool_use", "id": "t", "name": "f", "input": {}},
    {"type": "tool_result", "tool_use_id": "t", "content": "x"},
    {"type": "thinking", "thinking": "x", "signature": "s"},
    {"type": "refusal", "refusal": "no"},
    {"type": "unknown"},
    {"role": "tool", "tool_call_id": "t", "content": "x"},
    {"role": "developer", "content": [{"type": "input_text", "text": "x"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "t", "type": "function", "function": {"name": "f", "arguments": "[" * 99}}
        ],
    },
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"},
    {"type": "function_call_output", "call_id": "c", "output": "x"},
    {"type": "reasoning", "id": "r", "summary": []},
    {"type": "json_object"},
    {"type": "structural_tag", "structures": [], "triggers": []},
    {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": SCHEMA}},
    {"regex": "(a+)+b"},
    {"choice": ["a", "b"]},
    {"grammar": 'root ::= root "a" | "b"'},
    {"grammar": "start: /a/"},
    {"json": {"$ref": "#"}},
    {"json_object": True},
    {"type": "function", "function": {"name": "f"}},
]
SIMPLE: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 0.5, -0.0, 1e-300, 1e308, -1e308),
    *(2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**64), 10**30),
    *(float("nan"), float("inf"), float("-inf")),
    *("", "a", "0", "-1", "1e9", "nan", "true", "auto", "none", "required", "text", "user", "tool"),
    *("\x00", "\n\r\x1b[31m", "\ud800", "\udfff a", "\ufeff", "\u202e", "é" * 50, "👩‍👩‍👧" * 20),
    *("</s>", "<|im_start|>", "{{ 7*7 }}", "{% raw %}", "../../etc/passwd", "[" * 200, "x" * 5000),
    *([], {}, [[]], [None], [{}], {"": None}, [[[[]]]], [0] * 3000, ["a"] * 300),
]


@dataclass(frozen=True, slots=True)
class FuzzResult:
    """The result of fuzzing an endpoint.

    statuses: number of answers by status, 0 for requests without an answer.
    examples: path, body and answer, cut short, of bodies answered with 500 or above, or not at all.
    """

    num_bodies: int
    num_5xx: int
    statuses: dict[int, int]
    examples: tuple[tuple[str, str, str], ...]


async def fuzz(
    url: str, model: str, num_bodies: int, seed: int, concurrency: int = 16
) -> FuzzResult:
    """Send ``num_bodies`` bodies to the endpoint at ``url``, ``concurrency`` at a time."""
    rnd = random.Random(seed)
    bodies = iter([body_of(rnd, model) for _ in range(num_bodies)])
    statuses: Counter[int] = Counter()
    examples: list[tuple[str, str, str]] = []
    headers = {"Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(url, headers=headers, timeout=timeout) as http:

        async def worker() -> None:
            for path, body in bodies:
                status, text = await _post(http, path, body)
                statuses[status] += 1
                if (status == 0 or status >= 500) and len(examples) < MAX_EXAMPLES:
                    examples.append((path, body.decode(errors="replace")[:2000], text[:500]))

        await asyncio.gather(*(worker() for _ in range(concurrency)))
    bad = sum(count for status, count in statuses.items() if status == 0 or status >= 500)
    return FuzzResult(statuses.total(), bad, dict(statuses), tuple(examples))


async def _post(http: aiohttp.ClientSession, path: str, body: bytes) -> tuple[int, str]:
    try:
        async with http.post(path, data=body) as response:
            text = await response.text(errors="replace")
            # An error inside of a stream comes after the status.
            status = 500 if response.status == 200 and '"code":500' in text else response.status
            return status, text
    except (aiohttp.ClientError, TimeoutError) as error:
        return 0, f"{type(error).__name__}: {error}"


# -- bodies


def body_of(rnd: random.Random, model: str) -> tuple[str, bytes]:
    """Return the path of a random endpoint and a body for it."""
    (path,) = rnd.choices(list(BODIES), WEIGHTS)
    valid, optional = BODIES[path]
    body = {"model": model, **copy.deepcopy(valid)}
    for name in rnd.sample(list(optional), min(len(optional), rnd.choice((0, 1, 2, 3, 5)))):
        body[name] = copy.deepcopy(optional[name])
    for _ in range(rnd.choice((0, 1, 1, 2, 2, 3, 3, 4))):
        _mutate(rnd, body, list(optional))
    # Long responses would be slow without finding more.
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        value = body.get(name, valid.get(name, 0))
        if value is None or (isinstance(value, int | float) and not -9 < value < 9):
            body[name] = MAX_TOKENS
        elif name in valid:
            body.setdefault(name, MAX_TOKENS)
    text = json.dumps(body, ensure_ascii=rnd.random() < 0.5).encode(errors="surrogatepass")
    if rnd.random() < 0.05:
        text = _damaged(rnd, text)
    return path, text


def _mutate(rnd: random.Random, body: dict[str, Any], names: list[str]) -> None:
    """Change one value somewhere, or add a field."""
    target: Any = body
    while True:
        if isinstance(target, dict) and (not target or rnd.random() < 0.15):
            target[rnd.choice([*names, "extra", "__class__", "type"])] = _value(rnd)
            return
        if isinstance(target, list) and (not target or rnd.random() < 0.2):
            target.insert(rnd.randrange(len(target) + 1), _value(rnd))
            return
        key = rnd.choice(list(target) if isinstance(target, dict) else range(len(target)))
        inner = target[key]
        if isinstance(inner, dict | list) and rnd.random() < 0.6:
            target = inner
            continue
        if rnd.random() < 0.15:
            del target[key]
        elif key != "model" or rnd.random() < 0.1:
            target[key] = _value(rnd)
        return


def _value(rnd: random.Random, depth: int = 0) -> Any:
    choice = rnd.random()
    if depth > 2 or choice < 0.6:
        return copy.deepcopy(rnd.choice(SIMPLE))
    if choice < 0.8:
        return copy.deepcopy(rnd.choice(PARTS))
    if choice < 0.83:
        return _nested(rnd.choice((30, 70, 500)))
    if choice < 0.92:
        return [_value(rnd, depth + 1) for _ in range(rnd.randrange(4))]
    names = [
        "role",
        "content",
        "type",
        "text",
        "function",
        "name",
        "json",
        "regex",
        "0",
        "tokenize",
    ]
    return {rnd.choice(names): _value(rnd, depth + 1) for _ in range(rnd.randrange(1, 4))}


def _nested(depth: int) -> Any:
    value: Any = {}
    for level in range(depth):
        value = [value] if level % 2 else {"properties": value}
    return value


def _damaged(rnd: random.Random, text: bytes) -> bytes:
    data = bytearray(text)
    for _ in range(rnd.randrange(1, 4)):
        data[rnd.randrange(len(data))] = rnd.randrange(256)
    return bytes(data[: rnd.choice((len(data), len(data), len(data) // 2))])
